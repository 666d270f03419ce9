package main

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cavaliergopher/cpio"
)

// Names in the initramfs.
const (
	initName = "init"
	planName = "plan.json"
)

// writeInitramfs makes the initramfs: init, the modules of the kernel, and the plan. Only
// the user can read the file, because the plan has the environment.
func writeInitramfs(file, init, kernel string, p plan) (err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := cpio.NewWriter(f)
	add := func(name string, mode cpio.FileMode, content []byte) error {
		if err := w.WriteHeader(&cpio.Header{Name: name, Mode: mode, Size: int64(len(content))}); err != nil {
			return err
		}
		_, err := w.Write(content)
		return err
	}
	program, err := staticProgram(init)
	if err != nil {
		return err
	}
	encoded, err := json.Marshal(p)
	if err != nil {
		return err
	}
	err = errors.Join(
		add(initName, cpio.TypeReg|0o755, program),
		add(planName, cpio.TypeReg|0o600, encoded),
		add(modulesDir, cpio.TypeDir|0o755, nil),
	)
	if err != nil {
		return err
	}
	modules, err := os.ReadDir(filepath.Join(kernel, modulesDir))
	if err != nil {
		return err
	}
	for _, m := range modules {
		name := filepath.Join(modulesDir, m.Name())
		content, err := os.ReadFile(filepath.Join(kernel, name))
		if err != nil {
			return err
		}
		if err := add(name, cpio.TypeReg|0o644, content); err != nil {
			return err
		}
	}
	return w.Close()
}

// staticProgram returns a program that needs no libraries: the initramfs has none.
func staticProgram(path string) ([]byte, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	file, err := elf.NewFile(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("read the program %s: %w", path, err)
	}
	for _, p := range file.Progs {
		if p.Type == elf.PT_INTERP {
			return nil, fmt.Errorf("the program %s needs libraries, and must be built with CGO_ENABLED=0, as by make vm", path)
		}
	}
	return raw, nil
}
