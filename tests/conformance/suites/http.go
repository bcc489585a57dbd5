package main

import (
	"os"
	"path/filepath"
	"strings"
)

// Hooks that the overlay puts into package net, and their declarations.
const (
	listenLine = "func Listen(network, address string) (Listener, error) {"
	listenHook = "\tif SuiteListen != nil {\n\t\tif l, err, ours := SuiteListen(network, " +
		"address); ours {\n\t\t\treturn l, err\n\t\t}\n\t}"
	// in dialSingle, after the name is resolved and the trace has begun
	dialLine = "\tla := sd.LocalAddr"
	dialHook = "\tif SuiteDial != nil {\n\t\tif c, err, ours := SuiteDial(ctx, sd.network, " +
		"ra.String()); ours {\n\t\t\treturn c, err\n\t\t}\n\t}"

	hooks = `package net

import "context"

var (
	SuiteListen func(network, address string) (Listener, error, bool)
	SuiteDial   func(ctx context.Context, network, address string) (Conn, error, bool)
)
`
	// hooksFile sets them on the slice's side, before any test begins.
	hooksFile = `//go:build slice

package http_test

import (
	"net"

	"github.com/rdma-netstack/rdma-netstack/tests/conformance/suites/slice"
)

func init() {
	net.SuiteListen, net.SuiteDial = slice.ListenLocal, slice.DialLocal
	slice.Default()
}
`
	// theirs and ours are the path of the package in functions' names.
	theirs = "net/http_test."
	ours   = "suites/http_test."

	// leakLine begins the list of goroutines that the tests do not count as leaks.
	leakLine = "\t\t\tstrings.Contains(stack, \"testing.(*M).before.func1\") ||"
	leakMore = "\t\t\tstrings.Contains(stack, \"rdma-netstack\") || strings.Contains(stack, " +
		"\"gvisor.dev\") ||"
)

// httpSuite prepares the tests of package http_test.
func (w *workshop) httpSuite() (*suite, error) {
	p, err := w.standard("net/http")
	if err != nil {
		return nil, err
	}
	if err := w.hookNet(); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(p.Dir, "export_test.go"))
	if err != nil {
		return nil, err
	}
	if err := w.replace("net/http/suites_export.go", text); err != nil {
		return nil, err
	}
	err = w.takeTests(p.Dir, p.XTestGoFiles, "http", func(name, text string) (string, error) {
		text = strings.ReplaceAll(text, theirs, ours)
		if name != "main_test.go" {
			return text, nil
		}
		return insert(text, leakLine, leakMore)
	})
	if err != nil {
		return nil, err
	}
	if err := w.write("http/doc.go", []byte("package http\n")); err != nil {
		return nil, err
	}
	if err := w.write("http/hooks_test.go", []byte(hooksFile)); err != nil {
		return nil, err
	}
	s := &suite{name: "net/http", pkg: "http", dir: p.Dir, bin: w.dir, limit: limit}
	return s, w.buildPruned(s)
}

// hookNet makes package net call the hooks before it listens and dials.
func (w *workshop) hookNet() error {
	if err := w.replace("net/suites_hooks.go", []byte(hooks)); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(w.goroot, "src", "net", "dial.go"))
	if err != nil {
		return err
	}
	s, err := insert(string(text), listenLine, listenHook)
	if err == nil {
		s, err = insert(s, dialLine, dialHook)
	}
	if err != nil {
		return err
	}
	return w.replace("net/dial.go", []byte(s))
}

// read returns a file of the module.
func (w *workshop) read(name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(w.dir, name))
	return strings.ReplaceAll(string(b), "\r\n", "\n"), err
}
