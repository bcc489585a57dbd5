package house

import (
	"os"
	"path/filepath"
	"testing"
)

// TestCount counts a tree of which each figure is known.
func TestCount(t *testing.T) {
	root := t.TempDir()
	for name, src := range map[string]string{
		"stack/stack.go": `package stack

import "github.com/rdma-netstack/rdma-netstack/dv"

// Stack is a definition.
type Stack struct {
	a, b int
	c    string
}

// Config groups options.
type Config struct {
	NIC  dv.NIC
	Name string
	own  int
}

// Close closes it.
func (s *Stack) Close() {}

// look has the link told of it.
func (s *Stack) look() {}
`,
		"stack/more.go": `package stack

func (s Stack) announceAddress() {}

// take are two.
func take() {}
`,
		"stack/stack_test.go": "package stack\n\nfunc left() {}\n",
		"dv/dv.go": "package dv\n\ntype NIC struct{ Device string; Rings }\n\n" +
			"type Rings struct{ Size int }\n",
		"tests/x.go":          "package tests\n\nfunc over() {}\n",
		"docs/performance.md": "# Performance\n\nIt is  fast.\n",
	} {
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(src), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Count(root)
	want := Figures{
		ProductLines: 33, LargestPackage: "stack", LargestFiles: 2, LongestFile: 22,
		PerformanceWords: 5,
		StackMethods:     3, StackFields: 3, StackFiles: 2, Knobs: 3,
		Functions: 3, OneWord: 2, DocComments: 5, Definitions: 2, CausativeHas: 1,
	}
	if err != nil || got != want {
		t.Errorf("counted %+v, %v\n   want %+v", got, err, want)
	}
	if _, err := Count(t.TempDir()); err == nil {
		t.Error("an empty folder was counted")
	}
}
