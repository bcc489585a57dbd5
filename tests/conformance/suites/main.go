package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rdma-netstack/rdma-netstack/internal/overlay"
)

func main() {
	var o options
	flag.BoolVar(&o.short, "short", false, "leave out what Go's own tests leave out with -short; "+
		"of libraries, run some, and on the host what does not pass on the slice")
	flag.BoolVar(&o.keep, "keep", false, "keep the temporary module, and say where it is")
	of := flag.String("of", "", "only the suites of these, such as go,quic: "+
		strings.Join(groups(), ", "))
	flag.Parse()
	o.of = strings.FieldsFunc(*of, func(r rune) bool { return r == ',' || r == ' ' })
	if err := run(os.Stdout, o); err != nil {
		fmt.Fprintln(os.Stderr, "suites:", err)
		os.Exit(1)
	}
}

// options say what to run.
type options struct {
	short, keep bool
	of          []string // names of groups; none stands for all
}

// goSuites names the group of the toolchain's own tests.
const goSuites = "go"

// groups returns the names of groups of suites.
func groups() []string {
	all := []string{goSuites}
	for _, l := range libraries {
		all = append(all, l.name)
	}
	return all
}

// wants reports whether a group is to be run.
func (o options) wants(group string) bool { return len(o.of) == 0 || slices.Contains(o.of, group) }

// check refuses names of groups that are none.
func (o options) check() error {
	for _, name := range o.of {
		if !slices.Contains(groups(), name) {
			return fmt.Errorf("-of %s: want some of %s", name, strings.Join(groups(), ", "))
		}
	}
	return nil
}

// errDiffers reports a difference between slice and host that is not by design.
var errDiffers = errors.New("the slice differs from the host where it should not")

// workshop is the temporary module.
type workshop struct {
	dir    string // of the module
	repo   string // root of this module
	goroot string
	cache  string            // of what rdma-netstack build generates
	over   map[string]string // GOROOT's files and what replaces them
	short  bool
}

func run(out io.Writer, o options) error {
	w := &workshop{over: map[string]string{}, short: o.short}
	err := o.check()
	if err != nil {
		return err
	}
	if w.dir, err = os.MkdirTemp("", "suites"); err != nil {
		return err
	}
	if o.keep {
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
	for _, prepare := range w.wanted(o) {
		some, err := prepare()
		if err != nil {
			return err
		}
		for _, s := range some {
			c, err := w.compare(s, reasons)
			if err != nil {
				return err
			}
			all = append(all, c)
		}
	}
	return report(out, all, reasons, o.short)
}

// wanted returns what prepares the suites.
func (w *workshop) wanted(o options) (all []func() ([]*suite, error)) {
	if o.wants(goSuites) {
		for _, prepare := range []func() (*suite, error){w.netSuite, w.httpSuite} {
			all = append(all, func() ([]*suite, error) {
				s, err := prepare()
				return []*suite{s}, err
			})
		}
	}
	for _, l := range libraries {
		if o.wants(l.name) {
			all = append(all, func() ([]*suite, error) { return w.suitesOf(l) })
		}
	}
	return all
}

// open finds the repository and GOROOT, and makes the module: the requirements of this one, and
// this one.
func (w *workshop) open() error {
	for name, value := range map[string]string{"CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"} {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	var err error
	if w.cache, err = overlay.CacheDir(); err != nil {
		return err
	}
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
