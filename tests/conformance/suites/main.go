package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	short := flag.Bool("short", false, "leave out what Go's own tests leave out with -short")
	keep := flag.Bool("keep", false, "keep the temporary module, and say where it is")
	flag.Parse()
	if err := run(os.Stdout, *short, *keep); err != nil {
		fmt.Fprintln(os.Stderr, "suites:", err)
		os.Exit(1)
	}
}

// errDiffers reports a difference between slice and host that is not by design.
var errDiffers = errors.New("the slice differs from the host where it should not")

// workshop is the temporary module.
type workshop struct {
	dir    string // of the module
	repo   string // root of this module
	goroot string
	over   map[string]string // GOROOT's files and what replaces them
	short  bool
}

func run(out io.Writer, short, keep bool) error {
	w := &workshop{over: map[string]string{}, short: short}
	var err error
	if w.dir, err = os.MkdirTemp("", "suites"); err != nil {
		return err
	}
	if keep {
		fmt.Fprintln(out, "module:", w.dir)
	} else {
		defer os.RemoveAll(w.dir)
	}
	if err := w.open(); err != nil {
		return err
	}
	reasons, err := readReasons(filepath.Join(w.repo, "tests", "conformance", "suites", "bydesign"))
	if err != nil {
		return err
	}
	var all []*comparison
	for _, prepare := range []func() (*suite, error){w.netSuite, w.httpSuite} {
		s, err := prepare()
		if err != nil {
			return err
		}
		c, err := w.compare(s, reasons)
		if err != nil {
			return err
		}
		all = append(all, c)
	}
	return report(out, all, reasons, short)
}

// open finds the repository and GOROOT, and makes the module: the requirements of this one, and
// this one.
func (w *workshop) open() error {
	mod, err := output("go", "env", "GOMOD")
	if err != nil {
		return err
	}
	if w.goroot, err = output("go", "env", "GOROOT"); err != nil {
		return err
	}
	w.repo = filepath.Dir(mod)
	text, err := os.ReadFile(mod)
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(string(text), "\n")
	const us = "github.com/rdma-netstack/rdma-netstack"
	text = []byte("module suites\n" + rest + "\nrequire " + us + " v0.0.0\nreplace " +
		us + " => " + w.repo + "\n")
	if err := w.write("go.mod", text); err != nil {
		return err
	}
	sum, err := os.ReadFile(filepath.Join(w.repo, "go.sum"))
	if err != nil {
		return err
	}
	return w.write("go.sum", sum)
}

// write makes a file of the module.
func (w *workshop) write(name string, text []byte) error {
	path := filepath.Join(w.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}

// replace replaces or adds a file of GOROOT for all builds of the module.
func (w *workshop) replace(name string, text []byte) error {
	mine := filepath.Join("overlay", strings.ReplaceAll(name, "/", "_"))
	w.over[filepath.Join(w.goroot, "src", name)] = filepath.Join(w.dir, mine)
	return w.write(mine, text)
}

// output runs a command of the toolchain in the current directory.
func output(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}
