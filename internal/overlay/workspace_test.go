package overlay

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// writeTree writes files by their names below dir.
func writeTree(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// readSpace reads the workspace of the program in dir.
func readSpace(t *testing.T, dir string) *workspace {
	t.Helper()
	g := &goTool{path: need.Tool(t, "go"), dir: dir}
	e, err := g.readEnv(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w, err := readWorkspace(t.Context(), g, e)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// TestWorkspaceOfModule: the program keeps the GODEBUG settings of its own go line.
func TestWorkspaceOfModule(t *testing.T) {
	dir := t.TempDir()
	writeTree(t, dir, map[string]string{"go.mod": "module example.org/a\n\ngo 1.20\n"})
	got := readSpace(t, dir).text()
	for _, want := range []string{"godebug default=go1.20\n", "use \"" + dir + "\"\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	writeTree(t, dir, map[string]string{
		"go.mod": "module example.org/a\n\ngo 1.25.0\n\ngodebug panicnil=1\n"})
	got = readSpace(t, dir).text()
	for _, want := range []string{"godebug default=go1.25\n", "godebug panicnil=1\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

// TestWorkspaceMerged: the program's own go.work, with relative paths, and a replacement of x/net
// that gives way to ours.
func TestWorkspaceMerged(t *testing.T) {
	dir := t.TempDir()
	writeTree(t, dir, map[string]string{
		"go.work": "go 1.25.0\n\nuse (\n\t./a\n\t./b\n)\nreplace example.org/c => ./c\n" +
			"replace golang.org/x/net => ./net\n" +
			"replace example.org/d v1.0.0 => example.org/e v1.2.0\n",
		"a/go.mod": "module example.org/a\n\ngo 1.20\n",
		"b/go.mod": "module example.org/b\n\ngo 1.20\n",
	})
	w := readSpace(t, filepath.Join(dir, "a"))
	w.replaceModule(xnetModule, "/copy of net")
	got := w.text()
	for _, want := range []string{
		"use \"" + dir + "/a\"\n", "use \"" + dir + "/b\"\n", "godebug default=go1.25\n",
		"replace example.org/c => \"" + dir + "/c\"\n",
		"replace golang.org/x/net => \"/copy of net\"\n",
		"replace example.org/d v1.0.0 => \"example.org/e\" v1.2.0\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, dir+"/net") {
		t.Errorf("two replacements of x/net:\n%s", got)
	}
}

// TestVendored: copies of modules, without the modules inside them, and without those that we need.
func TestVendored(t *testing.T) {
	dir, cache := t.TempDir(), filepath.Join(t.TempDir(), "vendor")
	writeTree(t, dir, map[string]string{
		"vendor/modules.txt": "# example.org/a v1.0.0\n## explicit; go 1.22\nexample.org/a\n" +
			"example.org/a/p\n# example.org/a/b v0.1.0 => ./b\n## explicit\nexample.org/a/b\n" +
			"# golang.org/x/sys v0.1.0\n## go 1.20\ngolang.org/x/sys/unix\n",
		"vendor/example.org/a/a.go":           "package a\n",
		"vendor/example.org/a/p/p.go":         "package p\n",
		"vendor/example.org/a/b/b.go":         "package b\n",
		"vendor/golang.org/x/sys/unix/sys.go": "package unix\n",
	})
	w := &workspace{}
	n, err := w.useVendored(dir, cache, func(m string) bool { return m == "golang.org/x/sys" })
	if n != 2 || err != nil {
		t.Fatalf("%d modules, %v", n, err)
	}
	at := map[string]string{}
	for _, r := range w.replace {
		at[r.old] = r.new
	}
	for _, tt := range []struct{ module, name, want string }{
		{"example.org/a", "go.mod", "module example.org/a\n\ngo 1.22\n"},
		{"example.org/a", "p/p.go", "package p\n"},
		{"example.org/a/b", "b.go", "package b\n"},
		{"example.org/a/b", "go.mod", "module example.org/a/b\n\ngo 1.16\n"},
	} {
		got, err := os.ReadFile(filepath.Join(at[tt.module], tt.name))
		if string(got) != tt.want || err != nil {
			t.Errorf("%s of %s: %q, %v", tt.name, tt.module, got, err)
		}
	}
	if _, err := os.Stat(filepath.Join(at["example.org/a"], "b/b.go")); err == nil {
		t.Error("a module inside another is a part of both")
	}
}

// TestVendoredAgain: a build of the module as it was uses the same copies, and one of other files
// leaves them as they are.
func TestVendoredAgain(t *testing.T) {
	dir, cache := t.TempDir(), t.TempDir()
	write := func(text string) (at string) {
		writeTree(t, dir, map[string]string{
			"vendor/modules.txt":        "# example.org/a v1.0.0\n## explicit; go 1.22\n",
			"vendor/example.org/a/a.go": text,
		})
		w := &workspace{}
		if n, err := w.useVendored(dir, cache, func(string) bool { return false }); n != 1 ||
			err != nil {
			t.Fatalf("%d modules, %v", n, err)
		}
		return w.replace[0].new
	}
	first := write("package a\n")
	second := write("package a // changed\n")
	if again := write("package a\n"); again != first || second == first {
		t.Errorf("the copies are %s, %s when changed, %s when changed back", first, second, again)
	}
	for at, want := range map[string]string{first: "package a\n",
		second: "package a // changed\n"} {
		if got, err := os.ReadFile(filepath.Join(at, "a.go")); string(got) != want || err != nil {
			t.Errorf("%s has %q, %v", at, got, err)
		}
	}
}

func TestCheckFlags(t *testing.T) {
	got, err := checkFlags("-mod=vendor -trimpath", []string{"-race", "-tags", "x"})
	if got != "-trimpath" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	for _, tt := range []struct{ goflags, flag, want string }{
		{"-modfile=other.mod", "", "GOFLAGS has -modfile"},
		{"", "-overlay=x", "-overlay cannot be"}, {"", "-mod=mod", "-mod cannot be"},
		{"", "-o=x", "give it before"},
	} {
		if _, err := checkFlags(tt.goflags, []string{tt.flag}); err == nil ||
			!strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: %v", tt, err)
		}
	}
}

// TestXNet: the module that our own go.mod has gets its prologues, and compiles.
func TestXNet(t *testing.T) {
	g := &goTool{path: need.Tool(t, "go"), dir: "."}
	dir, err := g.output(t.Context(), "list", "-m", "-f", "{{.Dir}}", xnetModule)
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "net")
	if err := copyXNet(dir, to); err != nil {
		t.Fatal(err)
	}
	inCopy := &goTool{path: g.path, dir: to, env: []string{"GOWORK=off", "GOFLAGS=-mod=mod"}}
	if _, err := inCopy.output(t.Context(), "vet", "./internal/socket"); err != nil {
		t.Error(err)
	}
	if err := os.Remove(filepath.Join(to, "internal/socket/rawconn_mmsg.go")); err != nil {
		t.Fatal(err)
	}
	err = copyXNet(to, filepath.Join(t.TempDir(), "net"))
	if err == nil || !strings.Contains(err.Error(), "Conn.recvMsgs of internal/socket is missing") {
		t.Errorf("another shape: %v", err)
	}
}

// TestRefusedPrograms: one sentence each.
func TestRefusedPrograms(t *testing.T) {
	need.Tool(t, "go")
	source, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	library := map[string]string{"go.mod": "module example.org/l\n\ngo 1.20\n",
		"l.go": "package l\n"}
	for _, tt := range []struct {
		name  string
		files map[string]string
		pkg   string
		env   string
		want  string
	}{
		{"no go.mod", map[string]string{"main.go": "package main\nfunc main() {}\n"}, ".", "",
			"is in no module"},
		{"not a main package", library, ".", "", ". is package l: name a main package"},
		{"nothing there", library, "./none", "", "is not built by go build either"},
		{"several", map[string]string{"go.mod": library["go.mod"], "a/a.go": "package main\n",
			"b/b.go": "package main\n"}, "./...", "", "are 2 packages"},
		{"not for Linux", library, ".", "GOOS=darwin", "GOOS is darwin"},
		{"a version of nothing", library, "./x@v1", "", "want MODULE/PACKAGE@VERSION"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			writeTree(t, dir, tt.files)
			if k, v, ok := strings.Cut(tt.env, "="); ok {
				t.Setenv(k, v)
			}
			_, err := Prepare(t.Context(), Options{Dir: dir, Package: tt.pkg, Source: source,
				Cache: t.TempDir()})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}
