package overlay

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// workspace holds the go.work that a program is built with: its module or its own workspace, and
// our module. An alternative go.mod (-modfile) would raise the program's language version.
type workspace struct {
	goVersion string   // of the toolchain: no module may want more
	godebug   []string // KEY=VALUE
	use       []string // directories
	replace   []replacement
}

// replacement holds one replace directive; versions may be "".
type replacement struct{ old, oldVersion, new, newVersion string }

func (w *workspace) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "go %s\n\n", w.goVersion)
	for _, g := range w.godebug {
		fmt.Fprintf(&b, "godebug %s\n", g)
	}
	for _, u := range w.use {
		fmt.Fprintf(&b, "use %q\n", u)
	}
	for _, r := range w.replace {
		fmt.Fprintf(&b, "replace %s => %q", strings.TrimSpace(r.old+" "+r.oldVersion), r.new)
		if r.newVersion != "" {
			b.WriteString(" " + r.newVersion)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// replaceModule takes all versions of a module from dir.
func (w *workspace) replaceModule(module, dir string) {
	w.replace = slices.DeleteFunc(w.replace, func(r replacement) bool { return r.old == module })
	w.replace = append(w.replace, replacement{old: module, new: dir})
}

// modFile decodes what "go mod edit -json" and "go work edit -json" print.
type modFile struct {
	Go      string
	Module  struct{ Path string }
	GoDebug []struct{ Key, Value string }
	Godebug []struct{ Key, Value string }
	Use     []struct{ DiskPath string }
	Replace []struct {
		Old, New struct{ Path, Version string }
	}
}

// readWorkspace reads the workspace of the program, or makes one of its module.
func readWorkspace(ctx context.Context, g *goTool, e goEnv) (*workspace, error) {
	w := &workspace{goVersion: releaseOf(e.GOVERSION)}
	verb, file := "work", e.GOWORK
	if e.GOWORK == "" || e.GOWORK == "off" {
		verb, file, w.use = "mod", e.GOMOD, []string{filepath.Dir(e.GOMOD)}
	}
	out, err := g.output(ctx, verb, "edit", "-json", file)
	if err != nil {
		return nil, err
	}
	var m modFile
	if err := json.Unmarshal([]byte(out), &m); err != nil {
		return nil, err
	}
	if w.debugDefaults(m); verb == "mod" {
		return w, nil
	}
	absolute := func(path string) string {
		if filepath.IsAbs(path) {
			return path
		}
		return filepath.Join(filepath.Dir(e.GOWORK), path)
	}
	for _, u := range m.Use {
		w.use = append(w.use, absolute(u.DiskPath))
	}
	for _, r := range m.Replace {
		to := r.New.Path
		if r.New.Version == "" {
			to = absolute(to)
		}
		w.replace = append(w.replace, replacement{r.Old.Path, r.Old.Version, to, r.New.Version})
	}
	return w, nil
}

// debugDefaults keeps the GODEBUG settings that the program has by its go.mod or go.work, as the
// go line of ours would give it others.
func (w *workspace) debugDefaults(m modFile) {
	settings := append(m.GoDebug, m.Godebug...)
	for _, g := range settings {
		w.godebug = append(w.godebug, g.Key+"="+g.Value)
	}
	if slices.ContainsFunc(settings, func(g struct{ Key, Value string }) bool {
		return g.Key == "default"
	}) {
		return
	}
	version := m.Go
	if version == "" {
		version = "1.16" // what cmd/go takes a go.mod without a go line for
	}
	if parts := strings.SplitN(version, ".", 3); len(parts) >= 2 {
		minor, _, _ := strings.Cut(parts[1], "rc")
		w.godebug = append(w.godebug, "default=go"+parts[0]+"."+minor)
	}
}

// releaseOf returns the version for a go line: "go1.26.8 X:experiment" is 1.26.8.
func releaseOf(goversion string) string {
	v, _, _ := strings.Cut(strings.TrimPrefix(goversion, "go"), " ")
	v, _, _ = strings.Cut(v, "-")
	return v
}

// useVendored takes the modules that the program vendors from copies of its vendor directory, which
// a workspace does not use. Those that our own module needs come from the module cache: of
// them, vendor has the program's packages only. A copy in cache is named by its content: it is not
// changed while another build uses it. useVendored returns how many modules it has replaced.
func (w *workspace) useVendored(dir, cache string, needed func(module string) bool) (int, error) {
	vendor := filepath.Join(dir, "vendor")
	modules, err := readVendored(filepath.Join(vendor, "modules.txt"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	n := 0
	for _, m := range modules {
		from := filepath.Join(vendor, filepath.FromSlash(m.path))
		if _, err := os.Stat(from); err != nil || needed(m.path) {
			continue // no package of it is used, or not this copy
		}
		files, err := m.readFiles(vendor, modules)
		if err != nil {
			return n, err
		}
		to := filepath.Join(cache, hashOf(files), filepath.FromSlash(m.path)+"@vendor")
		if err := makeOnce(to, func(to string) error { return writeFiles(to, files) }); err != nil {
			return n, err
		}
		w.replaceModule(m.path, to)
		n++
	}
	return n, nil
}

// readFiles reads a module below vendor, with a go.mod as there is none, and without the modules
// inside it.
func (m vendoredModule) readFiles(vendor string, all []vendoredModule) (map[string][]byte, error) {
	files := map[string][]byte{}
	from := filepath.Join(vendor, filepath.FromSlash(m.path))
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		below, err := filepath.Rel(vendor, filepath.Dir(path))
		if err != nil || ownerAmong(all, filepath.ToSlash(below)) != m.path {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err == nil {
			files[name], err = os.ReadFile(path)
		}
		return err
	})
	files["go.mod"] = fmt.Appendf(nil, "module %s\n\ngo %s\n", m.path, m.goVersion)
	return files, err
}

// hashOf returns a name for files by their names and contents.
func hashOf(files map[string][]byte) string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(h, "%q %d\n", name, len(files[name]))
		h.Write(files[name])
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:6])
}

// writeFiles writes files below dir.
func writeFiles(dir string, files map[string][]byte) error {
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

type vendoredModule struct{ path, goVersion string }

// readVendored reads vendor/modules.txt (cmd/go, modules.txt in "go help mod vendor").
func readVendored(path string) (all []vendoredModule, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		switch {
		case len(words) >= 3 && words[0] == "#" && words[1] != "":
			all = append(all, vendoredModule{words[1], "1.16"})
		case len(words) >= 2 && words[0] == "##" && len(all) > 0:
			if _, v, ok := strings.Cut(lines.Text(), "go "); ok {
				all[len(all)-1].goVersion = strings.TrimSpace(v)
			}
		}
	}
	return all, lines.Err()
}

// ownerAmong returns the module of a package: the one with the longest path.
func ownerAmong(modules []vendoredModule, pkg string) (owner string) {
	for _, m := range modules {
		if (pkg == m.path || strings.HasPrefix(pkg, m.path+"/")) && len(m.path) > len(owner) {
			owner = m.path
		}
	}
	return owner
}
