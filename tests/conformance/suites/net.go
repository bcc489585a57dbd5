package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"path/filepath"
	"regexp"
	"time"
)

// sides are build tags and names of the stacks under test.
var sides = []string{host, onSlice}

const (
	host    = "host"
	onSlice = "slice"
)

// suite is one package's tests, copied and ready to be built.
type suite struct {
	name string // of the package in GOROOT, or of a library's part
	pkg  string // in the module
	dir  string // where its tests run
	bin  string // directory of the binaries

	// What follows is a library's.
	limit time.Duration // of one run of all tests
	only  string        // pattern of the tests that are run; "" for all
	env   []string      // besides the process's own
	notes string        // directory in which the slice's side says what it did

	// buildHost builds what -short does without as long as all pass on the slice; nil: it is built.
	buildHost func() error
}

// sliceFirst reports whether only what does not pass on the slice is run on the host.
func (s *suite) sliceFirst() bool { return s.buildHost != nil }

func (s *suite) binary(side string) string {
	return filepath.Join(s.bin, filepath.Base(s.pkg)+"-"+side+".test")
}

// netSuite prepares the tests of package net.
func (w *workshop) netSuite() (*suite, error) {
	p, err := w.standard("net")
	if err != nil {
		return nil, err
	}
	all, err := names(p.Dir, p.GoFiles)
	if err != nil {
		return nil, err
	}
	if err := w.takeTests(p.Dir, p.TestGoFiles, "net", nil); err != nil {
		return nil, err
	}
	insides, err := w.insidesUsed(all, p.TestGoFiles)
	if err != nil {
		return nil, err
	}
	if err := w.exportInsides(insides); err != nil {
		return nil, err
	}
	if err := w.writeNames(all, insides); err != nil {
		return nil, err
	}
	s := &suite{name: "net", pkg: "net", dir: p.Dir, bin: w.dir, limit: limit}
	return s, w.buildPruned(s)
}

// word finds identifiers, and some words in comments.
var word = regexp.MustCompile(`[A-Za-z_][A-Za-z0-9_]*`)

// insidesUsed are the unexported names of package net that its tests may use. Variables are not
// among them: they are hooks, which have an effect in package net only.
func (w *workshop) insidesUsed(all map[string]kind, files []string) (map[string]kind, error) {
	used := map[string]kind{}
	for _, name := range files {
		text, err := w.read(filepath.Join("net", name))
		if err != nil {
			return nil, err
		}
		for _, id := range word.FindAllString(text, -1) {
			if what, ok := all[id]; ok && !ast.IsExported(id) && what != isVar {
				used[id] = what
			}
		}
	}
	return used, nil
}

// exportInsides gives package net exported names for unexported ones.
func (w *workshop) exportInsides(insides map[string]kind) error {
	var b bytes.Buffer
	b.WriteString("package net\n\n")
	handOn(&b, "", insides, exported, same)
	return w.replace("net/suites_insides.go", b.Bytes())
}

// writeNames makes the package in which the tests are compiled: for each side a file with the
// side's names, and one with the common names.
func (w *workshop) writeNames(all, insides map[string]kind) error {
	dir := filepath.Join(w.repo, "tests", "conformance", "suites", "slice")
	ours, err := names(dir, []string{"net.go", "funcs.go"})
	if err != nil {
		return err
	}
	differ, rest := map[string]kind{}, map[string]kind{}
	for n, what := range all {
		if !ast.IsExported(n) {
			continue
		}
		if _, ok := ours[n]; ok {
			differ[n] = what
		} else {
			rest[n] = what
		}
	}
	files := map[string]*bytes.Buffer{"names.go": {}, "names_host.go": {}, "names_slice.go": {}}
	fmt.Fprintf(files["names.go"], "package net\n\nimport was %q\n\n", "net")
	handOn(files["names.go"], "was", rest, same, same)
	handOn(files["names.go"], "was", insides, same, exported)
	fmt.Fprintf(files["names_host.go"], "//go:build host\n\npackage net\n\nimport was %q\n\n",
		"net")
	handOn(files["names_host.go"], "was", differ, same, same)
	fmt.Fprintf(files["names_slice.go"], "//go:build slice\n\npackage net\n\nimport was %q\n\n",
		"github.com/rdma-netstack/rdma-netstack/tests/conformance/suites/slice")
	handOn(files["names_slice.go"], "was", differ, same, same)
	for name, b := range files {
		if err := w.write(filepath.Join("net", name), b.Bytes()); err != nil {
			return err
		}
	}
	return nil
}
