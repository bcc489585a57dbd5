package deploy

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

const (
	module  = "github.com/rdma-netstack/rdma-netstack"
	release = "v0.1.0"
)

// asked continues where RELEASE is set: the tools of a release take minutes to build.
func asked(t *testing.T) {
	t.Helper()
	var err error
	if os.Getenv("RELEASE") == "" {
		err = errors.New("RELEASE=1 asks for it: it builds the tools of a release")
	}
	need.That(t, "release", err)
}

// tagged clones the commit that is checked out and tags it with the release.
func tagged(t *testing.T) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "clone")
	do(t, "", nil, "git", "clone", "-q", "../../..", dir)
	do(t, dir, nil, "git", "-c", "user.name=t", "-c", "user.email=t@t.example",
		"tag", "-a", release, "-m", release)
	return dir
}

// do runs a program in a folder and returns what it prints.
func do(t *testing.T, dir string, env []string, args ...string) string {
	t.Helper()
	cmd := exec.Command(need.Tool(t, args[0]), args[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%q: %v: %s%s", args, err, out, stderr.Bytes())
	}
	return string(out)
}

// TestReleaseRefused expects one sentence for a commit without a tag and for a tree with changes.
func TestReleaseRefused(t *testing.T) {
	need.Tool(t, "git")
	dir := filepath.Join(t.TempDir(), "clone")
	do(t, "", nil, "git", "clone", "-q", "--no-tags", "../../..", dir)
	refused := func(want string) {
		t.Helper()
		cmd := exec.Command(filepath.Join(dir, "deploy/release.sh"))
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.HasPrefix(string(out), "release: "+want) {
			t.Errorf("%v: %s\nwant %q", err, out, want)
		}
	}
	refused("the commit has no version")
	if err := os.WriteFile(filepath.Join(dir, "new"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	refused("the tree has changes")
}

// TestRelease builds a release and reads every file of it back.
func TestRelease(t *testing.T) {
	asked(t)
	dir := tagged(t)
	do(t, dir, nil, "make", "release")
	dist := filepath.Join(dir, "dist")
	for arch, machine := range map[string]elf.Machine{
		"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64,
	} {
		name := filepath.Join(dist, "rdma-netstack-"+release+"-linux-"+arch)
		f, err := elf.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		libraries, err := f.ImportedLibraries()
		if f.Machine != machine || len(libraries) > 0 || err != nil {
			t.Errorf("%s: machine %v, libraries %q, %v", name, f.Machine, libraries, err)
		}
		f.Close()
		checkSBOM(t, name+".cdx.json")
		checkDeb(t, filepath.Join(dist, "rdma-netstack_"+release[1:]+"_"+arch+".deb"), machine)
	}
	checkSums(t, dist)
}

// checkSBOM expects the modules that matter in a bill of materials.
func checkSBOM(t *testing.T, name string) {
	t.Helper()
	var bom struct {
		BOMFormat  string `json:"bomFormat"`
		Components []struct{ Name, Version string }
	}
	text, err := os.ReadFile(name)
	if err == nil {
		err = json.Unmarshal(text, &bom)
	}
	if err != nil || bom.BOMFormat != "CycloneDX" {
		t.Errorf("%s: format %q, %v", name, bom.BOMFormat, err)
	}
	for _, want := range []string{"gvisor.dev/gvisor", "github.com/vishvananda/netlink",
		"github.com/miekg/dns"} {
		if !slices.ContainsFunc(bom.Components, func(c struct{ Name, Version string }) bool {
			return c.Name == want && c.Version != ""
		}) {
			t.Errorf("%s lacks %s", name, want)
		}
	}
}

// checkDeb unpacks a Debian package.
func checkDeb(t *testing.T, name string, machine elf.Machine) {
	t.Helper()
	root := t.TempDir()
	do(t, "", nil, "dpkg-deb", "-x", name, root)
	f, err := elf.Open(filepath.Join(root, "usr/bin/rdma-netstack"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Machine != machine {
		t.Errorf("%s is for %v", name, f.Machine)
	}
	unit, err := os.ReadFile(filepath.Join(root,
		"usr/lib/systemd/system/rdma-netstack@.service"))
	if err != nil || !strings.Contains(string(unit), "ExecStart=/usr/bin/rdma-netstack serve") {
		t.Errorf("the unit of %s: %v: %s", name, err, unit)
	}
	for _, file := range []string{"usr/share/man/man1/rdma-netstack.1.gz",
		"usr/share/man/man1/rdma-netstack-serve-http.1.gz",
		"usr/lib/udev/rules.d/90-rdma-netstack.rules", "usr/lib/sysusers.d/rdma-netstack.conf",
		"usr/share/bash-completion/completions/rdma-netstack",
		"usr/share/zsh/vendor-completions/_rdma-netstack",
		"usr/share/fish/vendor_completions.d/rdma-netstack.fish",
		"usr/share/doc/rdma-netstack/copyright", "etc/rdma-netstack"} {
		if _, err := os.Stat(filepath.Join(root, file)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// checkSums computes the checksums of all files again.
func checkSums(t *testing.T, dist string) {
	t.Helper()
	sums, err := os.ReadFile(filepath.Join(dist, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dist)
	if n := strings.Count(string(sums), "\n"); err != nil || n != len(files)-1 || n != 6 {
		t.Errorf("%d checksums of %d files, %v", n, len(files)-1, err)
	}
	for line := range strings.Lines(string(sums)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		b, err := os.ReadFile(filepath.Join(dist, name))
		if got := sha256.Sum256(b); err != nil || hex.EncodeToString(got[:]) != sum {
			t.Errorf("%s: %x, listed %s, %v", name, got, sum, err)
		}
	}
}

// TestGoInstall installs the release with the go command alone, from a proxy made of this tree and
// of what the module cache holds, into an empty cache.
func TestGoInstall(t *testing.T) {
	asked(t)
	dir, proxy := tagged(t), t.TempDir()
	publish(t, dir, proxy)
	cache := strings.TrimSpace(do(t, dir, nil, "go", "env", "GOMODCACHE"))
	do(t, dir, nil, "go", "mod", "download")
	bin := t.TempDir()
	env := []string{"GOPROXY=file://" + proxy + ",file://" + filepath.Join(cache, "cache/download"),
		"GOFLAGS=-modcacherw", "GONOSUMDB=*", "GOPRIVATE=", "GOSUMDB=off", "CGO_ENABLED=0",
		"GOMODCACHE=" + t.TempDir(), "GOBIN=" + bin, "GOWORK=off"}
	do(t, t.TempDir(), env, "go", "install", module+"/cmd/rdma-netstack@"+release)
	out := do(t, "", nil, filepath.Join(bin, "rdma-netstack"), "version")
	if !strings.HasPrefix(out, "rdma-netstack "+release+",") {
		t.Errorf("the installed program says %s", out)
	}
}

// publish writes the module of dir into a file proxy, as a module proxy serves it: without the
// modules below it (go.dev/ref/mod, "Module zip files").
func publish(t *testing.T, dir, proxy string) {
	t.Helper()
	at := filepath.Join(proxy, module, "@v")
	if err := os.MkdirAll(at, 0o755); err != nil {
		t.Fatal(err)
	}
	files := strings.Fields(do(t, dir, nil, "git", "ls-files"))
	var nested []string
	for _, f := range files {
		if path.Base(f) == "go.mod" && f != "go.mod" {
			nested = append(nested, path.Dir(f)+"/")
		}
	}
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	for _, f := range files {
		if slices.ContainsFunc(nested, func(d string) bool { return strings.HasPrefix(f, d) }) {
			continue
		}
		name := filepath.Join(dir, f)
		if info, err := os.Lstat(name); err != nil || info.Mode()&fs.ModeType != 0 {
			continue // links are not part of a module
		}
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		w, err := z.Create(module + "@" + release + "/" + f)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{
		"list":            []byte(release + "\n"),
		release + ".info": []byte(`{"Version":"` + release + `"}`),
		release + ".mod":  mod,
		release + ".zip":  buf.Bytes(),
	} {
		if err := os.WriteFile(filepath.Join(at, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
