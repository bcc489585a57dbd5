package overlay

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"go/version"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// Module names the module that programs are linked with.
const Module = "github.com/rdma-netstack/rdma-netstack"

// testSeamFile names the file that the overlay adds to the tests of a package.
const testSeamFile = "zz_rdma_netstack_test.go"

var (
	//go:embed text/auto.go.txt
	autoText []byte
	//go:embed text/early.go.txt
	earlyText []byte
)

// Options say what to build.
type Options struct {
	Dir      string   // where the command runs
	Package  string   // of a main package, perhaps with @VERSION; of a test, any patterns
	Patterns []string // further packages of a test
	Test     bool
	Flags    []string // for go build, such as -race
	Source   string   // the directory of Module's source
	Cache    string   // where generated files are kept
	Sim      bool     // link the software ConnectX
}

// Plan holds a build that is ready to run.
type Plan struct {
	// Packages has what is to be built, in the form for the go command.
	Packages []string
	// Notes are lines for the user: modules that are raised, a vendor directory that is copied.
	Notes []string
	// Raised are modules that the program gets in a higher version than by go build.
	Raised []string

	// added names our file among named files, which go build takes no others with.
	added    string
	tool     *goTool
	plain    *goTool // without the workspace of ours
	flags    []string
	findings []Finding
}

// Prepare reads GOROOT and the program, and generates what go build needs. It writes below
// o.Cache only.
func Prepare(ctx context.Context, o Options) (*Plan, error) {
	b := &builder{Options: o, tool: &goTool{path: "go", dir: o.Dir}}
	command, err := exec.LookPath("go")
	if err != nil {
		return nil, errors.New("there is no go command in PATH: install Go from go.dev/dl")
	}
	b.tool.path = command
	if err := b.fetchVersion(ctx); err != nil {
		return nil, err
	}
	if err := b.readEnvironment(ctx); err != nil {
		return nil, err
	}
	plan := &Plan{tool: b.tool}
	packages, err := b.listPlain(ctx)
	if err != nil {
		return nil, err
	}
	files, err := NetPackage(b.env.GOROOT, Target{GOARCH: b.env.GOARCH,
		CGO: b.env.CGO_ENABLED == "1", Race: slices.Contains(o.Flags, "-race")})
	if err != nil {
		return nil, err
	}
	if err := b.writeWorkspace(ctx, plan); err != nil {
		return nil, err
	}
	b.addOwnPackages(files)
	if err := b.injectImports(packages, files); err != nil {
		return nil, err
	}
	overlay, err := b.writeOverlay(files)
	if err != nil {
		return nil, err
	}
	plan.flags = append([]string{"-overlay", overlay}, o.Flags...)
	plan.Packages = append([]string{b.Package}, o.Patterns...)
	if packages[0].ImportPath == namedFiles {
		dir, _ := filepath.Split(b.Package) // as it is named, which go build compares
		plan.added = dir + b.seamFile()
	}
	return plan, b.compareModules(ctx, plan, packages)
}

// namedFiles repeats what go list calls the package of files that are named.
const namedFiles = "command-line-arguments"

// seamFile returns the name of the file that is added to the program.
func (b *builder) seamFile() string {
	if b.Test {
		return testSeamFile
	}
	return SeamFile
}

// builder holds the state of one Prepare.
type builder struct {
	Options
	tool  *goTool
	env   goEnv
	at    string // the directory of this program's files in Cache
	space *workspace
}

// fetchVersion copies the module of PACKAGE@VERSION, as go build does not overlay files in the
// module cache.
func (b *builder) fetchVersion(ctx context.Context) error {
	pkg, version, ok := strings.Cut(b.Package, "@")
	if !ok {
		return nil
	}
	if b.Test {
		return fmt.Errorf("%s: tests are those of packages of this module or workspace: leave out "+
			"@%s, or run it in a checkout of that version", b.Package, version)
	}
	if pkg == "" || version == "" || strings.HasPrefix(pkg, ".") {
		return fmt.Errorf("%s: want MODULE/PACKAGE@VERSION, such as example.org/server@latest",
			b.Package)
	}
	plain := &goTool{path: b.tool.path, dir: os.TempDir(), env: []string{"GOWORK=off", "GOFLAGS="}}
	var failed error
	for module := pkg; strings.Contains(module, "/"); module = path.Dir(module) {
		out, err := plain.output(ctx, "mod", "download", "-json", module+"@"+version)
		var m struct{ Dir, Version, Error string }
		if jerr := json.Unmarshal([]byte(out), &m); jerr != nil || m.Dir == "" {
			if m.Error != "" {
				err = errors.New(m.Error)
			}
			failed = errors.Join(failed, err)
			continue
		}
		to := filepath.Join(b.Cache, "src", filepath.FromSlash(module)+"@"+m.Version)
		if err := makeOnce(to, func(to string) error { return copyTree(m.Dir, to) }); err != nil {
			return fmt.Errorf("copy %s: %w", module, err)
		}
		b.tool.dir = to
		b.tool.env = append(b.tool.env, "GOWORK=off")
		b.Package = "." + strings.TrimPrefix(pkg, module)
		return nil
	}
	return fmt.Errorf("%s@%s is in no module that can be downloaded: %w", pkg, version, failed)
}

// readEnvironment asks the go command, and refuses what cannot be built.
func (b *builder) readEnvironment(ctx context.Context) (err error) {
	if b.env, err = b.tool.readEnv(ctx); err != nil {
		return err
	}
	if err := b.raiseToolchain(ctx); err != nil {
		return err
	}
	e := &b.env
	flags, err := checkFlags(e.GOFLAGS, b.Flags)
	if err != nil {
		return err
	}
	b.tool.env = append(b.tool.env, "GOFLAGS="+flags)
	switch {
	case e.GOOS != "linux":
		return fmt.Errorf("GOOS is %s: a slice is of a Linux host; set GOOS=linux", e.GOOS)
	case e.GOARCH != "amd64" && e.GOARCH != "arm64":
		return fmt.Errorf("GOARCH is %s: a slice is of a host of amd64 or arm64; set GOARCH to "+
			"one of them", e.GOARCH)
	case e.GOMOD == "" || e.GOMOD == os.DevNull:
		dir, err := filepath.Abs(b.tool.dir)
		return errors.Join(fmt.Errorf("%s is in no module: there is no go.mod there or above; run "+
			"it in the directory of the program, or name PACKAGE@VERSION", dir), err)
	case below(e.GOMOD, e.GOMODCACHE):
		return fmt.Errorf("%s is in the module cache, where go build overlays nothing: name the "+
			"package with its version, as PACKAGE@VERSION", filepath.Dir(e.GOMOD))
	}
	sum := sha256.Sum256([]byte(e.GOMOD + "\n" + e.GOWORK + "\n" + e.GOVERSION + "\n" + e.GOARCH))
	b.at = filepath.Join(b.Cache, "build", fmt.Sprintf("%x", sum[:6]))
	return b.tool.useCopyOfGOROOT(e, b.Cache)
}

// raiseToolchain lets the Go release build that rdma-netstack's own go.mod asks for, where the
// program's is older.
func (b *builder) raiseToolchain(ctx context.Context) error {
	text, err := os.ReadFile(filepath.Join(b.Source, "go.mod"))
	if err != nil {
		return fmt.Errorf("%s is not the source of %s: %w", b.Source, Module, err)
	}
	var wanted string
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "go "); ok {
			wanted = "go" + strings.TrimSpace(v)
		}
	}
	is := "go" + releaseOf(b.env.GOVERSION)
	if wanted == "" || version.Compare(is, wanted) >= 0 {
		return nil
	}
	if choice := b.env.GOTOOLCHAIN; choice != "auto" && !strings.HasSuffix(choice, "+auto") {
		return fmt.Errorf("%s is older than the %s that rdma-netstack is built by, and "+
			"GOTOOLCHAIN=%s lets it take no other: install that, or set GOTOOLCHAIN=auto", is,
			wanted, choice)
	}
	b.tool.env = append(b.tool.env, "GOTOOLCHAIN="+wanted)
	b.env, err = b.tool.readEnv(ctx)
	return err
}

// listPlain lists the program's packages as go build has them.
func (b *builder) listPlain(ctx context.Context) ([]listedPackage, error) {
	args := slices.Concat([]string{"-e"}, b.listFlags(), []string{b.Package}, b.Patterns)
	named, err := listPackages(ctx, b.tool, args...)
	if err != nil {
		return nil, fmt.Errorf("%s is not built by go build either: %w", b.Package, err)
	}
	for _, p := range named {
		switch {
		case p.Error != nil:
			return nil, fmt.Errorf("%s is not built by go build either: %s", b.Package,
				oneLine(p.Error.Err))
		case !b.Test && p.Name != "main":
			return nil, fmt.Errorf("%s is package %s: name a main package, such as ./cmd/server",
				b.Package, p.Name)
		}
	}
	if !b.Test && len(named) != 1 {
		return nil, fmt.Errorf("%s are %d packages: name one main package", b.Package, len(named))
	}
	return named, nil
}

// listFlags returns those of Flags that go list needs to choose the same files.
func (b *builder) listFlags() (some []string) {
	for i, f := range b.Flags {
		name, _, value := strings.Cut(strings.TrimLeft(f, "-"), "=")
		switch {
		case name == "race" || name == "msan" || name == "asan" || name == "tags" && value:
			some = append(some, f)
		case name == "tags" && i+1 < len(b.Flags):
			some = append(some, f, b.Flags[i+1])
		}
	}
	return some
}

// writeWorkspace writes go.work, first without and then with the copy of golang.org/x/net.
func (b *builder) writeWorkspace(ctx context.Context, plan *Plan) error {
	space, err := readWorkspace(ctx, b.tool, b.env)
	if err != nil {
		return err
	}
	b.space = space
	source := sourceModules{}
	if err := source.read(filepath.Join(b.Source, "go.mod")); err != nil {
		return fmt.Errorf("%s is not the source of %s: %w", b.Source, Module, err)
	}
	if b.env.GOWORK == "" || b.env.GOWORK == "off" {
		n, err := space.useVendored(filepath.Dir(b.env.GOMOD), filepath.Join(b.Cache, "vendor"),
			source.has)
		if err != nil {
			return fmt.Errorf("copy the vendor directory: %w", err)
		}
		if n > 0 {
			plan.Notes = append(plan.Notes, fmt.Sprintf("%d modules are copies of those in "+
				"vendor; those that rdma-netstack needs, too, come from the module cache", n))
		}
	}
	if !slices.Contains(space.use, b.Source) {
		space.use = append(space.use, b.Source)
	}
	if err := b.useWorkspace(); err != nil {
		return err
	}
	if _, err := b.tool.output(ctx, "mod", "download", xnetModule); err != nil {
		return err
	}
	out, err := b.tool.output(ctx, "list", "-m", "-f", "{{.Version}} {{.Dir}}", xnetModule)
	if err != nil {
		return err
	}
	version, dir, _ := strings.Cut(out, " ")
	if dir == "" {
		return fmt.Errorf("%s has no directory: %s", xnetModule, out)
	}
	sum := sha256.Sum256(slices.Concat([]byte(dir), xnetSeam))
	to := filepath.Join(b.Cache, "xnet", fmt.Sprintf("%s-%x", version, sum[:4]))
	if err := copyXNet(dir, to); err != nil {
		return err
	}
	space.replaceModule(xnetModule, to)
	return b.useWorkspace()
}

// useWorkspace writes the workspace as it is now, and has the go command use it.
func (b *builder) useWorkspace() error {
	file, err := b.writeByContent("go.work", []byte(b.space.text()))
	b.tool.env = append(b.tool.env, "GOWORK="+file)
	return err
}

// writeByContent writes a file of this program's to a directory that is named by its content:
// another build of the same module may run at the same time, with other packages or flags.
func (b *builder) writeByContent(name string, text []byte) (path string, err error) {
	sum := sha256.Sum256(text)
	path = filepath.Join(b.at, fmt.Sprintf("%x", sum[:6]), name)
	return path, writeFile(path, text)
}

// sourceModules holds the modules that our own needs.
type sourceModules map[string]bool

func (s sourceModules) has(module string) bool { return s[module] }

func (s sourceModules) read(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(string(text), "module "+Module+"\n") {
		return errors.New("its go.mod is another module's")
	}
	for _, line := range strings.Split(string(text), "\n") {
		words := strings.Fields(strings.TrimPrefix(line, "require "))
		if len(words) >= 2 && strings.Contains(words[0], ".") && strings.HasPrefix(words[1], "v") {
			s[words[0]] = true
		}
	}
	return nil
}

// addOwnPackages adds the packages that connect package net with package unmodified.
func (b *builder) addOwnPackages(files map[string][]byte) {
	dir := filepath.Join(b.Source, "unmodified")
	text := string(autoText)
	if b.Sim {
		text = strings.Replace(text, "\"syscall\"\n", "\"syscall\"\n\n\t\""+Module+
			"/unmodified/sim\"", 1) + "\nvar openSim unmodified.OpenSim = sim.Open\n"
	} else {
		text += "\nvar openSim unmodified.OpenSim\n"
	}
	files[filepath.Join(dir, "auto", "auto.go")] = []byte(text)
	files[filepath.Join(dir, "early", "early.go")] = earlyText
}

// injectImports adds an import of ours to the main package, or to each external test.
func (b *builder) injectImports(packages []listedPackage, files map[string][]byte) error {
	if b.Test {
		for _, p := range packages {
			if below(p.Dir, b.env.GOROOT) {
				return fmt.Errorf("%s is of the standard library, whose tests import no other "+
					"module", p.ImportPath)
			}
			if p.Name == "" {
				continue
			}
			text := fmt.Sprintf("package %s_test\n\nimport _ %q\n", p.Name,
				Module+"/unmodified/auto")
			files[filepath.Join(p.Dir, testSeamFile)] = []byte(text)
		}
		return nil
	}
	p := packages[0]
	text := "package main\n\nimport _ \"" + Module + "/unmodified/auto\"\n"
	if !b.setsResolver(p) {
		// The resolver of C libraries would ask by the kernel.
		text = "//go:debug netdns=go\n" + text
	}
	files[filepath.Join(p.Dir, SeamFile)] = []byte(text)
	return nil
}

// setsResolver reports whether the program chooses its resolver by a go:debug line.
func (b *builder) setsResolver(p listedPackage) bool {
	for _, name := range p.GoFiles {
		text, err := os.ReadFile(filepath.Join(p.Dir, name))
		if err == nil && strings.Contains(string(text), "//go:debug netdns=") {
			return true
		}
	}
	return slices.ContainsFunc(b.space.godebug, func(s string) bool {
		return strings.HasPrefix(s, "netdns=")
	})
}

// writeOverlay writes files, each to a name by its content, and the list for go build -overlay.
func (b *builder) writeOverlay(files map[string][]byte) (string, error) {
	replace := map[string]string{}
	for path, text := range files {
		sum := sha256.Sum256(text)
		to := filepath.Join(b.Cache, "overlay", fmt.Sprintf("%x-%s", sum[:8], filepath.Base(path)))
		if _, err := os.Stat(to); err != nil {
			if err := writeFile(to, text); err != nil {
				return "", err
			}
		}
		replace[path] = to
	}
	list, err := json.MarshalIndent(map[string]any{"Replace": replace}, "", "\t")
	if err != nil {
		return "", err
	}
	return b.writeByContent("overlay.json", list)
}

// writeFile writes a file in whole, as others may read it.
func writeFile(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// compareModules lists what the program is built of, scans it, and notes which modules are higher
// than by go build.
func (b *builder) compareModules(ctx context.Context, plan *Plan, named []listedPackage) error {
	args := slices.Concat([]string{"-deps"}, b.listFlags())
	plainTool := b.tool.withoutWorkspace(b.at)
	plan.plain = plainTool
	if b.Test {
		args = append(args, "-test")
	}
	plain, err := listPackages(ctx, plainTool, slices.Concat(args, plan.Packages)...)
	if err != nil {
		return fmt.Errorf("%s is not built by go build either: %w", b.Package, err)
	}
	before := map[string]string{}
	for _, p := range plain {
		module, version := p.moduleVersion()
		before[module] = version
	}
	args = append(args, plan.flags[:2]...) // -overlay
	args = append(args, plan.Packages...)
	if plan.added != "" {
		args = append(args, plan.added)
	}
	now, err := listPackages(ctx, b.tool, args...)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, p := range now {
		module, version := p.moduleVersion()
		if was := before[module]; was != "" && was != version && !seen[module] && version != "" {
			seen[module] = true
			plan.Raised = append(plan.Raised, fmt.Sprintf("%s %s => %s", module, was, version))
		}
	}
	slices.Sort(plan.Raised)
	if plan.findings, err = scanPackages(now); err != nil {
		return err
	}
	for i := range plan.findings {
		if len(named) == 1 && plan.findings[i].Package == named[0].ImportPath && !b.Test {
			plan.findings[i].inMain = true
		}
	}
	return nil
}

// Cmd returns the go command that does verb, "build" or "test", with args before the packages.
func (p *Plan) Cmd(ctx context.Context, verb string, args ...string) *exec.Cmd {
	words := slices.Concat([]string{verb}, p.flags, args, p.Packages)
	if p.added != "" {
		words = append(words, p.added)
	}
	return p.tool.Cmd(ctx, words...)
}

// WhoseFault says, after a build that failed, whether go build fails as well.
func (p *Plan) WhoseFault(ctx context.Context) error {
	args := slices.Concat([]string{"build", "-o", os.DevNull}, p.flags[2:], p.Packages)
	if _, err := p.plain.output(ctx, args...); err != nil {
		return fmt.Errorf("%s is not built by go build either: see above", p.Packages[0])
	}
	if len(p.Raised) > 0 {
		return fmt.Errorf("go build builds %s, but not with the modules that rdma-netstack "+
			"raises: see above", p.Packages[0])
	}
	return fmt.Errorf("go build builds %s: that this does not is a fault of rdma-netstack: report "+
		"it with what is above", p.Packages[0])
}

// Findings returns the uses of descriptors in the packages of the program, or with the name of what
// was built those of functions that are in it. A program without our own is an error.
func (p *Plan) Findings(binary string) ([]Finding, error) {
	if binary == "" {
		return p.findings, nil
	}
	functions, err := linkedFunctions(binary)
	if err != nil {
		return nil, err
	}
	if !functions[Module+"/unmodified.FromEnvironment"] {
		return nil, errors.New("what was built has only sockets of the kernel: that is a fault " +
			"of rdma-netstack: report it with the command")
	}
	return slices.DeleteFunc(slices.Clone(p.findings), func(f Finding) bool {
		return !f.isLinked(functions)
	}), nil
}

// Verdict says what a program is refused for, and the findings to warn of, without those of the
// allowed kinds.
func Verdict(findings []Finding, allowed []Kind) (warnings []Finding, err error) {
	var refused []string
	for _, f := range findings {
		switch {
		case slices.Contains(allowed, f.Kind):
		case f.Kind.refused():
			refused = append(refused, "\t"+f.String())
		default:
			warnings = append(warnings, f)
		}
	}
	if len(refused) > 0 {
		err = fmt.Errorf("the program makes or waits for sockets by system calls, which the "+
			"kernel would serve in silence; --allow %s or --allow %s builds it all the same:\n%s",
			SocketCalls, Pollers, strings.Join(refused, "\n"))
	}
	return warnings, err
}

// FindSource returns the directory of Module's source: the first at or above start that is a
// checkout, else a copy of version from the module cache.
func FindSource(ctx context.Context, version, cache string, start ...string) (string, error) {
	for _, dir := range start {
		for ; dir != "" && dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
			if (sourceModules{}).read(filepath.Join(dir, "go.mod")) == nil {
				return dir, nil
			}
		}
	}
	if !strings.HasPrefix(version, "v") || strings.Contains(version, "+dirty") {
		return "", fmt.Errorf("this rdma-netstack does not know its source, which programs are "+
			"linked with: name the directory of a checkout by --source (version %s)", version)
	}
	g := &goTool{path: "go", dir: os.TempDir(), env: []string{"GOWORK=off", "GOFLAGS="}}
	out, err := g.output(ctx, "mod", "download", "-json", Module+"@"+version)
	var m struct{ Dir, Error string }
	if jerr := json.Unmarshal([]byte(out), &m); jerr != nil || m.Dir == "" {
		return "", fmt.Errorf("the source of this rdma-netstack cannot be downloaded; name the "+
			"directory of a checkout by --source: %w", errors.Join(err, errors.New(m.Error)))
	}
	to := filepath.Join(cache, "src", filepath.FromSlash(Module)+"@"+version)
	return to, makeOnce(to, func(to string) error { return copyTree(m.Dir, to) })
}

// CacheDir returns the directory where generated files are kept by default.
func CacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no directory for generated files: %w; set XDG_CACHE_HOME", err)
	}
	return filepath.Join(dir, "rdma-netstack", runtime.Version()), nil
}
