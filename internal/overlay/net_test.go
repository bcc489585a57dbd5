package overlay

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// goroot is the GOROOT of the go command.
func goroot(t *testing.T) string {
	t.Helper()
	cmd := exec.Command("go", "env", "GOROOT")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// targets are what package net of a release is read for.
var targets = []Target{
	{GOARCH: "amd64"}, {GOARCH: "amd64", CGO: true}, {GOARCH: "amd64", CGO: true, Race: true},
	{GOARCH: "arm64"}, {GOARCH: "arm64", CGO: true},
}

// TestNetPackage: package net with the changes compiles, for every target.
func TestNetPackage(t *testing.T) {
	need.Tool(t, "go")
	root := goroot(t)
	for _, target := range targets {
		files, err := NetPackage(root, target)
		if err != nil {
			t.Errorf("%+v: %v", target, err)
			continue
		}
		if target.CGO && target.GOARCH != runtime.GOARCH || target.Race {
			continue // wants a C compiler
		}
		buildNet(t, &goTool{path: "go"}, target, files)
	}
}

// buildNet compiles package net with files in the place of GOROOT's, by the go command of g.
func buildNet(t *testing.T, g *goTool, target Target, files map[string][]byte) {
	t.Helper()
	dir := t.TempDir()
	replace := map[string]string{}
	for path, text := range files {
		to := filepath.Join(dir, filepath.Base(path))
		if err := os.WriteFile(to, text, 0o644); err != nil {
			t.Fatal(err)
		}
		replace[path] = to
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, list, 0o644); err != nil {
		t.Fatal(err)
	}
	cgo := "0"
	if target.CGO {
		need.Compiler(t)
		cgo = "1"
	}
	cmd := g.Cmd(t.Context(), "vet", "-overlay", overlay, "-unsafeptr=false", "net")
	cmd.Dir = dir
	cmd.Env = append(cmd.Env, "GOARCH="+target.GOARCH, "CGO_ENABLED="+cgo, "GOFLAGS=",
		"GOWORK=off", "GOOS=linux")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%+v: %v\n%s", target, err, out)
	}
}

// TestNetPackageRefused: a package net that differs in what matters is refused by the function's
// name.
func TestNetPackageRefused(t *testing.T) {
	need.Tool(t, "go")
	root := goroot(t)
	for _, tt := range []struct{ name, file, old, new, want string }{
		{"parameter added", "fd_posix.go", "func (fd *netFD) Read(p []byte) (",
			"func (fd *netFD) Read(p []byte, more int) (",
			"netFD.Read is ([]byte,int) (int,error), not ([]byte) (int,error)"},
		{"renamed", "sockopt_posix.go", "func setLinger(", "func setLingers(",
			"setLinger is missing"},
		{"further user of a descriptor", "fd_posix.go", "func (fd *netFD) Close(",
			"func (fd *netFD) peek() int { return fd.pfd.Sysfd }\n\nfunc (fd *netFD) Close(",
			"fd_posix.go: netFD.peek uses a descriptor and is not known"},
		{"further maker of sockets", "fd_posix.go", "func (fd *netFD) Close(",
			"func other() *netFD { return &netFD{} }\n\nfunc (fd *netFD) Close(",
			"fd_posix.go: other makes a netFD and is not known"},
		{"parameter without a name", "rawconn.go",
			"func (c *rawConn) Control(f func(uintptr)) error {",
			"func (c *rawConn) Control(_ func(uintptr)) error {\nvar f func(uintptr)\n",
			"rawconn.go: parameter 1 of rawConn.Control has no name"},
		{"type renamed", "fd_posix.go", "type netFD struct", "type socketFD struct",
			"type netFD is missing"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			other := t.TempDir()
			copyNet(t, root, other)
			path := filepath.Join(other, "src", "net", tt.file)
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			changed := strings.Replace(string(text), tt.old, tt.new, 1)
			if changed == string(text) {
				t.Fatalf("%s has no %q", tt.file, tt.old)
			}
			if err := os.WriteFile(path, []byte(changed), 0o644); err != nil {
				t.Fatal(err)
			}
			_, err = NetPackage(other, Target{GOARCH: "amd64"})
			if err == nil || !strings.Contains(err.Error(), tt.want) ||
				!strings.Contains(err.Error(), other) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// copyNet copies the Go files of package net.
func copyNet(t *testing.T, from, to string) {
	t.Helper()
	dir := filepath.Join(to, "src", "net")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(from, "src", "net", "*.go"))
	if err != nil || len(names) == 0 {
		t.Fatalf("%d files, %v", len(names), err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(name)), text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestNetPackageWithoutSource(t *testing.T) {
	_, err := NetPackage(t.TempDir(), Target{GOARCH: "amd64"})
	if err == nil || !strings.Contains(err.Error(), "no source of package net") {
		t.Errorf("got %v", err)
	}
}

// TestKnownReleases reads and compiles package net of the releases that GO_RELEASES lists, such as
// "go1.25.5 go1.27rc1". make test-unmodified sets it: each is a download of 60 MB.
func TestKnownReleases(t *testing.T) {
	releases := strings.Fields(os.Getenv("GO_RELEASES"))
	if len(releases) == 0 {
		need.That(t, "releases", errors.New("GO_RELEASES lists the releases of Go to read"))
	}
	for _, release := range releases {
		t.Run(release, func(t *testing.T) {
			g := &goTool{path: "go", env: []string{"GOTOOLCHAIN=" + release, "GOFLAGS="}}
			e, err := g.readEnv(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := g.useCopyOfGOROOT(&e, t.TempDir()); err != nil {
				t.Fatal(err)
			}
			for _, target := range targets {
				files, err := NetPackage(e.GOROOT, target)
				if err != nil {
					t.Errorf("%+v: %v", target, err)
				} else if !target.CGO {
					buildNet(t, g, target, files)
				}
			}
		})
	}
}
