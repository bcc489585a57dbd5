package overlay

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// goTool runs a go command in a directory.
type goTool struct {
	path string
	dir  string
	env  []string // besides the process's own
}

// Cmd returns the command, which has no output yet.
func (g *goTool) Cmd(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, g.path, args...)
	cmd.Dir, cmd.Env = g.dir, append(os.Environ(), g.env...)
	return cmd
}

// output runs the command and returns what it prints. Its errors have what it says on stderr.
func (g *goTool) output(ctx context.Context, args ...string) (string, error) {
	cmd := g.Cmd(ctx, args...)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	err := cmd.Run()
	if err != nil {
		err = &goError{"go " + args[0], strings.TrimSpace(complaint.String()), err}
	}
	return strings.TrimSpace(out.String()), err
}

// goError holds what the go command says of a failure.
type goError struct {
	command, text string
	err           error
}

func (e *goError) Error() string {
	if e.text == "" {
		return fmt.Sprintf("%s: %v", e.command, e.err)
	}
	return e.command + ": " + oneLine(e.text)
}

// oneLine joins what the go command says on several lines. Its progress is left out.
func oneLine(text string) string {
	var kept []string
	for _, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if advice, ok := strings.CutPrefix(line, "go get "); ok && len(kept) > 0 {
			last := &kept[len(kept)-1]
			*last = strings.TrimSuffix(*last, ":") + " by \"go get " + advice + "\""
		} else if line != "" && !strings.HasPrefix(line, "go: downloading ") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "; ")
}

func (e *goError) Unwrap() error { return e.err }

// goEnv holds the values that "go env" prints.
type goEnv struct {
	GOROOT, GOVERSION, GOARCH, GOOS, GOMOD, GOWORK, GOMODCACHE, GOFLAGS, CGO_ENABLED,
	GOTOOLCHAIN string
}

func (g *goTool) readEnv(ctx context.Context) (e goEnv, err error) {
	out, err := g.output(ctx, "env", "-json")
	if err == nil {
		err = json.Unmarshal([]byte(out), &e)
	}
	return e, err
}

// withoutWorkspace returns g without the go.work in dir.
func (g *goTool) withoutWorkspace(dir string) *goTool {
	plain := &goTool{path: g.path, dir: g.dir}
	for _, v := range g.env {
		if !strings.HasPrefix(v, "GOWORK="+dir) {
			plain.env = append(plain.env, v)
		}
	}
	return plain
}

// below reports whether path is dir or in it.
func below(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
}

// useCopyOfGOROOT makes g use links to a toolchain that Go has downloaded into its module cache,
// where go build refuses to overlay files.
func (g *goTool) useCopyOfGOROOT(e *goEnv, cache string) error {
	if !below(e.GOROOT, e.GOMODCACHE) {
		return nil
	}
	to := filepath.Join(cache, "goroot", filepath.Base(e.GOROOT))
	if err := makeOnce(to, func(to string) error { return linkTree(e.GOROOT, to) }); err != nil {
		return fmt.Errorf("copy the toolchain out of the module cache: %w", err)
	}
	e.GOROOT = to
	g.path = filepath.Join(to, "bin", "go")
	g.env = append(g.env, "GOROOT="+to, "GOTOOLCHAIN=local")
	return nil
}

// checkFlags refuses flags of go build that the overlay has a need of its own for, and returns the
// GOFLAGS without those that a workspace does not know.
func checkFlags(goflags string, flags []string) (string, error) {
	var kept []string
	for _, f := range strings.Fields(goflags) {
		name, _, _ := strings.Cut(strings.TrimLeft(f, "-"), "=")
		switch name {
		case "modfile", "overlay":
			return "", fmt.Errorf("GOFLAGS has -%s, which rdma-netstack sets itself: unset it",
				name)
		case "mod", "modcacherw":
			continue
		}
		kept = append(kept, f)
	}
	for _, f := range flags {
		name, _, _ := strings.Cut(strings.TrimLeft(f, "-"), "=")
		switch {
		case !strings.HasPrefix(f, "-"):
		case name == "modfile" || name == "overlay" || name == "mod" || name == "C":
			return "", fmt.Errorf("-%s cannot be among the flags for go build: the modules are "+
				"chosen by a workspace of rdma-netstack's", name)
		case name == "o":
			return "", errors.New("-o among the flags for go build: give it before the package")
		}
	}
	return strings.Join(kept, " "), nil
}
