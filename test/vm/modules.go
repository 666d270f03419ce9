package main

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// wantedModules are loaded in this order, each after the modules that it depends on.
var wantedModules = []string{
	// The VM itself: output, and the files of this machine.
	"virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay",
	// Links.
	"8021q", "bridge", "dummy", "geneve", "ifb", "ipvlan", "macvlan", "tun", "veth", "vrf", "vxlan",
	// Limits of bandwidth.
	"act_mirred", "act_police", "cls_matchall", "cls_u32", "sch_fq_codel", "sch_ingress", "sch_tbf",
	// Packet filters. Nothing loads nf_tables' parts on demand in the VM.
	"crc32c_generic", "br_netfilter", "nf_conntrack_netlink", "nfnetlink_queue", "nf_tables", "nft_chain_nat", "nft_ct", "nft_fib_inet",
	"nft_connlimit", "nft_dup_netdev", "nft_fib_netdev", "nft_fwd_netdev", "nft_hash", "nft_limit", "nft_log", "nft_masq",
	"nft_meta_bridge", "nft_nat", "nft_numgen", "nft_objref", "nft_queue", "nft_redir", "nft_reject_bridge", "nft_reject_inet", "nft_socket",
}

// module is one module of the kernel.
type module struct {
	name    string
	content []byte
}

// modulesOf returns the wanted modules of a directory as in /lib/modules, each behind the
// modules that it depends on. Modules that are built into the kernel are left out.
func modulesOf(ctx context.Context, dir string, wanted []string) ([]module, error) {
	files := map[string]string{} // by name; "" if it is built in
	builtin, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(builtin)) {
		files[moduleName(strings.TrimSpace(line))] = ""
	}
	err = filepath.WalkDir(filepath.Join(dir, "kernel"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.Contains(d.Name(), ".ko") {
			files[moduleName(path)] = path
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var out []module
	done := map[string]bool{}
	var add func(name, by string) error
	add = func(name, by string) error {
		file, ok := files[name]
		if !ok {
			return fmt.Errorf("the kernel in %s has no module %s, which %s needs", dir, name, by)
		}
		if done[name] || file == "" {
			return nil
		}
		done[name] = true
		raw, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		content, err := decompress(ctx, raw)
		if err != nil {
			return fmt.Errorf("decompress %s: %w", file, err)
		}
		depends, err := dependsOf(content)
		if err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
		for _, d := range depends {
			if err := add(d, name); err != nil {
				return err
			}
		}
		out = append(out, module{name, content})
		return nil
	}
	for _, name := range wanted {
		if err := add(name, "the VM"); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// moduleName returns the name of the module in a file: files may have - for _.
func moduleName(file string) string {
	name, _, _ := strings.Cut(filepath.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// dependsOf returns the names of the modules that a module depends on.
func dependsOf(content []byte) ([]string, error) {
	file, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	section := file.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("it is no module of a kernel: it lacks the section .modinfo")
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	var out []string
	for entry := range bytes.SplitSeq(info, []byte{0}) {
		list, ok := strings.CutPrefix(string(entry), "depends=")
		if !ok || list == "" {
			continue
		}
		for name := range strings.SplitSeq(list, ",") {
			out = append(out, moduleName(name))
		}
	}
	return out, nil
}
