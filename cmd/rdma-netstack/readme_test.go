package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/need"
)

// TestReadmeServer compiles the server that README begins with.
func TestReadmeServer(t *testing.T) {
	gotool := need.Tool(t, "go")
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	code := regexp.MustCompile("(?s)```go\n(.*?)```").FindSubmatch(readme)
	if code == nil {
		t.Fatal("README has no Go code")
	}
	if lines := strings.Count(string(code[1]), "\n"); lines > 12 {
		t.Errorf("the server of README has grown to %d lines", lines)
	}
	dir := t.TempDir()
	source := filepath.Join(dir, "main.go")
	program := "package main\n\nimport (\n\"context\"\n\"log\"\n\"net/http\"\n\"net/netip\"\n\n" +
		"\"github.com/rdma-netstack/rdma-netstack/dv\"\n\"github.com/rdma-netstack/rdma-netstack/stack\"\n)\n\n" + string(code[1])
	if err := os.WriteFile(source, []byte(program), 0o644); err != nil {
		t.Fatal(err)
	}
	// As if it were a file of this module.
	place, err := filepath.Abs("../../readme/main.go")
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{place: source}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(gotool, "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", filepath.Join(dir, "server"), "./readme")
	cmd.Dir = filepath.Dir(filepath.Dir(place))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s\n%s", err, out, program)
	}
}
