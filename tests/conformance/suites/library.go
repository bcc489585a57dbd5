package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rdma-netstack/rdma-netstack/internal/overlay"
)

// library describes a module whose own tests are run, by the loopback addresses that they use.
type library struct {
	name   string // of its suites, before the slash
	module string
	user   string // the directory of this repository whose go.mod says which version
	parts  []part
	edits  []edit
}

// part names a package of a library.
type part struct {
	name  string // of the suite, behind the slash
	path  string // in the module, "." for its root
	short string // pattern of the tests that -short runs; "" for none
	limit time.Duration
}

// edit puts text behind a line of a file, which has it once.
type edit struct{ file, line, more string }

// libraries lists the modules.
var libraries = []library{
	{name: "quic", module: "github.com/quic-go/quic-go", user: "contrib/quic", parts: []part{
		{name: "sockets", path: ".", limit: 5 * time.Minute,
			short: "^Test(ReadECN|SendPackets|SysConn|SendConn|Dial$|Listen|Transport|" +
				"ReadsMultiple)"},
		{name: "self", path: "integrationtests/self", limit: 10 * time.Minute,
			short: "^Test(Handshake$|HTTP(Get|Post|Headers|Streamer|Datagrams|RemoteAddr)|" +
				"Datagram|ConnectionMigration|NATRebinding$|Multiplex|EarlyData|" +
				"Bidirectional|ConnectionIDs|MITMDuplicate|Qlog)"},
		{name: "versions", path: "integrationtests/versionnegotiation", limit: time.Minute,
			short: "."},
		{name: "proxy", path: "integrationtests/tools/proxy", limit: time.Minute, short: "."},
		{name: "http3", path: "http3", limit: 2 * time.Minute},
	}},
	{name: "pion", module: "github.com/pion/transport/v5", user: "contrib/pion", parts: []part{
		// It asks for answers within 10 ms, and for the order of datagrams of several sockets,
		// which are hosts of their own here: not for machines with other load.
		{name: "udp", path: "udp", limit: 2 * time.Minute},
		{name: "stdnet", path: "stdnet", limit: time.Minute, short: "."},
		{name: "vnet", path: "vnet", limit: 2 * time.Minute},
		{name: "reuseport", path: "reuseport", limit: time.Minute, short: "."},
	}, edits: []edit{
		// goroutines that are no leaks of a test
		{"test/util.go", "\t\t\tstrings.Contains(stack, \"testing.Main(\") || // Tests",
			"\t\t\tstrings.Contains(stack, \"rdma-netstack\") ||\n" +
				"\t\t\tstrings.Contains(stack, \"gvisor.dev\") ||"},
	}},
}

// hooksOfLibrary gives the file that has the tests of a package served by slices.
const hooksOfLibrary = `//go:build rdma_overlay

package %s_test

import "github.com/rdma-netstack/rdma-netstack/tests/conformance/suites/localhost"

func init() {
	if err := localhost.Install(); err != nil {
		panic(err)
	}
}
`

// hooksTag chooses that file.
const hooksTag = "rdma_overlay"

// timeScale gives what quic-go's own tests multiply short times by on machines of continuous
// integration.
const timeScale = "TIMESCALE_FACTOR=3"

// suitesOf prepares the suites of a module: a copy of it, and binaries for either side. Those
// for the slice are built as rdma-netstack test does.
func (w *workshop) suitesOf(l library) ([]*suite, error) {
	copied, err := w.copyLibrary(l)
	if err != nil {
		return nil, err
	}
	buildHost := sync.OnceValue(func() error { return w.buildOnHost(l, copied) })
	if w.short {
		l.parts = slices.DeleteFunc(slices.Clone(l.parts),
			func(p part) bool { return p.short == "" })
	} else if err := buildHost(); err != nil {
		return nil, err
	}
	if err := w.buildOnSlice(l, copied); err != nil {
		return nil, err
	}
	var all []*suite
	for _, p := range l.parts {
		bin := filepath.Join(w.dir, l.name)
		s := &suite{name: l.name + "/" + p.name, pkg: p.binary(l), bin: bin,
			dir: filepath.Join(copied, p.path), limit: p.limit, env: []string{timeScale},
			notes: filepath.Join(bin, "notes-"+p.name)}
		if w.short {
			s.only, s.buildHost = p.short, buildHost
		}
		if err := os.MkdirAll(s.notes, 0o755); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

// binary returns the name that go test -c gives to the tests of the package.
func (p part) binary(l library) string {
	if name := path.Base(path.Join(l.module, p.path)); !strings.HasPrefix(name, "v") ||
		strings.Trim(name[1:], "0123456789") != "" {
		return name
	}
	return path.Base(path.Dir(l.module))
}

// copyLibrary returns a copy of the module out of the module cache, with hooks and edits. It has
// the same place each time, so that the next run finds what go build has cached.
func (w *workshop) copyLibrary(l library) (string, error) {
	cmd := exec.Command("go", "mod", "download", "-json", l.module)
	cmd.Dir = filepath.Join(w.repo, l.user)
	out, err := cmd.Output()
	var m struct{ Dir, Version, Error string }
	if jerr := json.Unmarshal(out, &m); jerr != nil || m.Dir == "" {
		return "", fmt.Errorf("download %s: %w", l.module, errors.Join(err, errors.New(m.Error)))
	}
	files, err := l.changes(m.Dir)
	if err != nil {
		return "", fmt.Errorf("%s@%s: %w", l.module, m.Version, err)
	}
	sum := sha256.New()
	fmt.Fprint(sum, w.repo, files)
	to := filepath.Join(w.cache, "suites",
		fmt.Sprintf("%s@%s-%x", l.name, m.Version, sum.Sum(nil)[:4]))
	if _, err := os.Stat(to); err == nil {
		return to, nil
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return "", err
	}
	fresh, err := os.MkdirTemp(filepath.Dir(to), "new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(fresh)
	if err := os.CopyFS(fresh, os.DirFS(m.Dir)); err != nil {
		return "", err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(fresh, name), []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	if err := os.Rename(fresh, to); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	return to, nil
}

// changes returns the files of the copy that differ from those in dir.
func (l library) changes(dir string) (map[string]string, error) {
	files := map[string]string{}
	for _, p := range l.parts {
		name, err := packageOfTests(filepath.Join(dir, p.path))
		if err != nil {
			return nil, err
		}
		files[filepath.Join(p.path, "zz_localhost_test.go")] = fmt.Sprintf(hooksOfLibrary, name)
	}
	for _, e := range l.edits {
		text, err := os.ReadFile(filepath.Join(dir, e.file))
		if err != nil {
			return nil, err
		}
		if files[e.file], err = insert(string(text), e.line, e.more); err != nil {
			return nil, fmt.Errorf("%s: %w", e.file, err)
		}
	}
	return files, nil
}

// packageOfTests returns the name of the package whose tests are in a directory.
func packageOfTests(dir string) (string, error) {
	tests, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return "", err
	}
	if len(tests) == 0 {
		return "", fmt.Errorf("no tests in %s", dir)
	}
	f, err := parser.ParseFile(token.NewFileSet(), tests[0], nil, parser.PackageClauseOnly)
	if err != nil {
		return "", err
	}
	return strings.TrimSuffix(f.Name.Name, "_test"), nil
}

// packages returns the library's, as the go command names them in its directory.
func (l library) packages() (all []string) {
	for _, p := range l.parts {
		all = append(all, "./"+p.path)
	}
	return all
}

// buildOnHost builds the tests as go test does.
func (w *workshop) buildOnHost(l library, dir string) error {
	cmd := exec.Command("go", slices.Concat([]string{"test", "-c", "-vet=off", "-ldflags=-w", "-o",
		w.built(l, host)}, l.packages())...)
	cmd.Dir = dir
	return w.keepBinaries(l, host, cmd)
}

// buildOnSlice builds them as rdma-netstack test does, with the hooks, whose module is only in the
// workspace that it makes.
func (w *workshop) buildOnSlice(l library, dir string) error {
	ctx := context.Background()
	all := l.packages()
	plan, err := overlay.Prepare(ctx, overlay.Options{Dir: dir, Package: all[0],
		Patterns: all[1:], Test: true, Source: w.repo, Cache: w.cache})
	if err != nil {
		return fmt.Errorf("%s by the overlay: %w", l.module, err)
	}
	return w.keepBinaries(l, onSlice,
		plan.Cmd(ctx, "test", "-c", "-vet=off", "-ldflags=-w", "-tags="+hooksTag, "-o",
			w.built(l, onSlice)))
}

// built returns the directory that go test writes binaries of a side to.
func (w *workshop) built(l library, side string) string {
	return filepath.Join(w.dir, l.name, side) + string(filepath.Separator)
}

// keepBinaries runs a build, and names what it has made by package and side.
func (w *workshop) keepBinaries(l library, side string, cmd *exec.Cmd) error {
	if err := os.MkdirAll(w.built(l, side), 0o755); err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build tests of %s for the %s: %w\n%s", l.module, side, err, out)
	}
	for _, p := range l.parts {
		name := p.binary(l)
		err := os.Rename(filepath.Join(w.built(l, side), name+".test"),
			filepath.Join(w.dir, l.name, name+"-"+side+".test"))
		if err != nil {
			return err
		}
	}
	return nil
}
