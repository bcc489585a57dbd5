package overlay

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// scanText scans a package of one file.
func scanText(t *testing.T, text string) []Finding {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.go"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	all, err := scanPackages([]listedPackage{{ImportPath: "example.org/p", Dir: dir,
		GoFiles: []string{"a.go"}}})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestScan: what goes round package net is found, with its line, and nothing else is.
func TestScan(t *testing.T) {
	const unixImport = "package p\nimport \"golang.org/x/sys/unix\"\n"
	for _, tt := range []struct{ name, text, want string }{
		{"a socket", unixImport + "func f() { unix.Socket(unix.AF_INET, 1, 0) }",
			"a.go:3: example.org/p.f calls unix.Socket (socket)"},
		{"of an unknown family", unixImport + "func f(n int) { unix.Socket(n, 1, 0) }",
			"unix.Socket (socket)"},
		{"of another family", unixImport + "func f() { unix.Socket(unix.AF_NETLINK, 1, 0) }", ""},
		{"under another name", "package p\nimport s \"syscall\"\n" +
			"func (t *T) f() { s.Socket(2, 1, 0) }\ntype T int",
			"example.org/p.T.f calls s.Socket"},
		{"by number", "package p\nimport \"syscall\"\n" +
			"func f() { syscall.Syscall(syscall.SYS_SOCKET, 2, 1, 0) }",
			"syscall.SYS_SOCKET (socket)"},
		{"a poller",
			unixImport + "func f() { unix.EpollWait(1, nil, 0); unix.Read(1, nil) }",
			"unix.EpollWait (poller)"},
		{"a poller of no sockets", unixImport + "func f() { unix.EpollWait(1, nil, 0) }", ""},
		{"a listener of a descriptor",
			"package p\nimport \"net\"\nvar L, _ = net.FileListener(nil)",
			"net.FileListener (inherit)"},
		{"a descriptor", "package p\nimport \"net\"\nfunc f(l *net.TCPListener) { l.File() }",
			".File() (file)"},
		{"a method of the same name",
			"package p\nfunc f(x interface{ Socket() }) { x.Socket() }", ""},
	} {
		var got []string
		for _, f := range scanText(t, tt.text) {
			got = append(got, f.String())
		}
		all := strings.Join(got, "\n")
		if (all == "") != (tt.want == "") || !strings.Contains(all, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, all, tt.want)
		}
	}
}

// TestScanWithTests: go list names a package once more with its tests, for which the overlay has a
// file that is not there, and a main function in the build cache. Each finding is reported once.
func TestScanWithTests(t *testing.T) {
	dir := t.TempDir()
	writeTree(t, dir, map[string]string{"p.go": "package p\nimport \"syscall\"\n" +
		"func f() { syscall.Socket(2, 1, 0) }"})
	all, err := scanPackages([]listedPackage{
		{ImportPath: "example.org/p", Dir: dir, GoFiles: []string{"p.go"}},
		{ImportPath: "example.org/p [example.org/p.test]", Dir: dir, GoFiles: []string{"p.go"}},
		{ImportPath: "example.org/p_test [example.org/p.test]", Dir: dir,
			GoFiles: []string{testSeamFile}},
		{ImportPath: "example.org/p.test", Dir: dir,
			GoFiles: []string{filepath.Join(dir, "cache", "_testmain.go")}},
	})
	if err != nil || len(all) != 1 || all[0].Package != "example.org/p" {
		t.Errorf("%v, %v", all, err)
	}
}

// TestVerdict: sockets and pollers are refused unless they are allowed.
func TestVerdict(t *testing.T) {
	all := []Finding{{Kind: SocketCalls, File: "a.go:1"}, {Kind: Files, File: "b.go:2"}}
	warnings, err := Verdict(all, nil)
	if err == nil || !strings.Contains(err.Error(), "a.go:1") || len(warnings) != 1 {
		t.Errorf("%v, %v", warnings, err)
	}
	if warnings, err := Verdict(all, []Kind{SocketCalls, Files}); err != nil || len(warnings) != 0 {
		t.Errorf("allowed: %v, %v", warnings, err)
	}
}

// TestIsLinked knows functions under the names that the linker gives them.
func TestIsLinked(t *testing.T) {
	functions := map[string]bool{"example.org/p/v2.f": true, "example.org/p.(*T).m": true,
		"example.org/p.U.m": true, "example.org/a%2eb.g[...]": true, "main.h": true}
	for _, tt := range []struct {
		f    Finding
		want bool
	}{
		{Finding{Package: "example.org/p/v2", Function: "f"}, true},
		{Finding{Package: "example.org/p", Function: "f"}, false},
		{Finding{Package: "example.org/p", Function: "T.m"}, true},
		{Finding{Package: "example.org/p", Function: "U.m"}, true},
		{Finding{Package: "example.org/a.b", Function: "g"}, true},
		{Finding{Package: "example.org/cmd", Function: "h", inMain: true}, true},
		{Finding{Package: "example.org/cmd", Function: "h"}, false},
		{Finding{Package: "example.org/p", Function: "init"}, true},
	} {
		if got := tt.f.isLinked(functions); got != tt.want {
			t.Errorf("%+v: %v", tt.f, got)
		}
	}
}

// TestScanOnce: of a package that is listed again with its tests each use is found once.
func TestScanOnce(t *testing.T) {
	dir := t.TempDir()
	text := "package p\nimport \"syscall\"\nfunc f() { syscall.Socket(2, 1, 0) }\n" +
		"func g() { syscall.Socket(2, 1, 0) }"
	if err := os.WriteFile(filepath.Join(dir, "a.go"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	p := listedPackage{ImportPath: "example.org/p", Dir: dir, GoFiles: []string{"a.go"}}
	withTests := p
	withTests.ImportPath += " [example.org/p.test]"
	all, err := scanPackages([]listedPackage{p, withTests})
	if err != nil || len(all) != 2 {
		t.Errorf("%v, %v", all, err)
	}
}

// TestLinkedFunctions reads this test's own program.
func TestLinkedFunctions(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	functions, err := linkedFunctions(exe)
	if err != nil || !functions["os.ReadFile"] || functions["net.noSuch"] {
		t.Errorf("%d functions, %v", len(functions), err)
	}
	if _, err := linkedFunctions(os.Args[0] + ".none"); err == nil {
		t.Error("no error for a file that is not there")
	}
}
