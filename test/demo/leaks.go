package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/netlab"
)

// tunnels and tables are the things that fairlead-node keeps on a node without pods.
var (
	tunnels = []string{"fairlead-vx4", "fairlead-vx6"}
	tables  = []string{"arp fairlead", "bridge fairlead", "inet fairlead"}
)

// cleanNodes checks that nothing of the pods is left on the nodes, removes Fairlead from
// them, and checks that nothing at all is left.
func (w *testbed) cleanNodes(ctx context.Context) error {
	left, err := w.leftOfPods()
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return leaked("pods", left)
	}
	w.Say("nodes: no link, network namespace or record of a pod is left")
	if err := w.stopNodes(); err != nil {
		return err
	}
	for _, node := range w.nodes {
		if err := w.cleanNode(ctx, node); err != nil {
			return err
		}
	}
	left, err = w.leftOfFairlead()
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return leaked("Fairlead", left)
	}
	w.Say("nodes: fairlead-node cleanup has left them as they were")
	return nil
}

func leaked(of string, items []string) error {
	return fmt.Errorf("leaked=%d: left of %s:\n  %s", len(items), of, strings.Join(items, "\n  "))
}

// leftOfPods lists the remains of pods on the nodes while Fairlead runs there.
func (w *testbed) leftOfPods() ([]string, error) {
	var left []string
	for _, node := range w.nodes {
		state, err := node.State()
		if err != nil {
			return nil, fmt.Errorf("look at %s: %w", node.KubeName, err)
		}
		news := state.Since(node.baseline)
		news.Links = slices.DeleteFunc(news.Links, func(name string) bool { return slices.Contains(tunnels, name) })
		news.Tables = slices.DeleteFunc(news.Tables, func(name string) bool { return slices.Contains(tables, name) })
		news.Routes = nil // the node's own: whole blocks
		for _, item := range news.All() {
			left = append(left, node.KubeName+": "+item)
		}
		files, err := node.PodFiles()
		if err != nil {
			return nil, err
		}
		left = append(left, files...)
	}
	return left, nil
}

// leftOfFairlead lists all remains on the nodes after the cleanup.
func (w *testbed) leftOfFairlead() ([]string, error) {
	var left []string
	for _, node := range w.nodes {
		state, err := node.State()
		if err != nil {
			return nil, fmt.Errorf("look at %s: %w", node.KubeName, err)
		}
		for _, item := range append(state.Since(node.baseline).All(), gone(node.baseline, state)...) {
			left = append(left, node.KubeName+": "+item)
		}
		for _, dir := range []string{node.StateDir(), node.BinDir(), node.ConfDir()} {
			files, err := filepath.Glob(filepath.Join(dir, "*"))
			if err != nil {
				return nil, err
			}
			for _, file := range files {
				if entries, err := os.ReadDir(file); err != nil || len(entries) > 0 {
					left = append(left, node.KubeName+": file "+file)
				}
			}
		}
	}
	return left, nil
}

// gone lists the things that were there before and are missing now.
func gone(before, after netlab.State) []string {
	var out []string
	for _, item := range before.Since(after).All() {
		out = append(out, "(gone) "+item)
	}
	return out
}

// stopNodes stops the programs on the nodes that still run.
func (w *testbed) stopNodes() error {
	var running []*harness.Process
	for _, node := range w.nodes {
		for _, p := range []*harness.Process{node.Daemon, node.Runner} {
			if p != nil {
				running = append(running, p)
			}
		}
		node.Daemon, node.Runner = nil, nil
	}
	return harness.StopAll(running...)
}

func (w *testbed) stopController() error {
	if w.control == nil {
		return nil
	}
	defer func() { w.control = nil }()
	return w.control.Stop()
}

// cleanNode removes Fairlead from a node, as an operator would.
func (w *testbed) cleanNode(ctx context.Context, node *labNode) error {
	_, err := w.Programs.Run(ctx, node.Do, filepath.Join(w.Bin, "fairlead-node"), "cleanup", "--cni", "--config", w.ConfigFile(node.DaemonName()))
	if err != nil {
		return fmt.Errorf("clean %s: %w", node.KubeName, err)
	}
	return nil
}
