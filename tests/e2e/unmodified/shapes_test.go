package unmodified

import (
	"archive/zip"
	"bytes"
	"context"
	"debug/buildinfo"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"go/version"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// server serves the text that the function text returns.
const server = `package main

import (
	"io"
	"log"
	"net/http"
)

func main() {
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, text()) })
	log.Fatal(http.ListenAndServe(":80", nil))
}
`

// constantText makes text return a constant.
const constantText = "package main\n\nfunc text() string { return \"plain\" }\n"

// dependentText makes text return that of another module.
const dependentText = "package main\n\nimport \"example.org/dep\"\n\n" +
	"func text() string { return dep.Text() }\n"

// tree holds the files of a program by their paths.
type tree map[string]string

// moduleFile returns a go.mod with further lines.
func moduleFile(path, language string, lines ...string) string {
	return "module " + path + "\n\ngo " + language + "\n\n" + strings.Join(lines, "\n") + "\n"
}

// dependency returns the files of a package dep whose Text is word, below dir.
func dependency(dir, path, word string) tree {
	return tree{dir + "/go.mod": moduleFile(path, "1.22"),
		dir + "/dep.go": "package dep\n\nfunc Text() string { return \"" + word + "\" }\n"}
}

// with returns t with the files of others.
func (t tree) with(others ...tree) tree {
	all := tree{}
	for _, o := range append([]tree{t}, others...) {
		for name, text := range o {
			all[name] = text
		}
	}
	return all
}

func (t tree) writeTo(test *testing.T, dir string) {
	test.Helper()
	for name, text := range t {
		path := filepath.Join(dir, name)
		must(test, os.MkdirAll(filepath.Dir(path), 0o755))
		must(test, os.WriteFile(path, []byte(text), 0o644))
	}
}

// shape describes one way in which a program is built.
type shape struct {
	name  string
	files tree
	in    string   // the directory below that of files where it is built; "": that itself
	pkg   string   // "": .
	flags []string // of rdma-netstack build
	env   []string
	ready func(t *testing.T, s *shapeBuild) // before the build; may be nil
	text  string                            // what the program answers; "": "plain"
	check func(t *testing.T, binary string) // may be nil
	// unstarted programs are for another machine.
	unstarted bool
}

// plainServer returns the files of a server that needs no other module.
func plainServer() tree {
	return tree{"go.mod": moduleFile("example.org/m", "1.22"), "main.go": server,
		"text.go": constantText}
}

func shapes() []shape {
	plain := plainServer()
	dependent := tree{"main.go": server, "text.go": dependentText}
	c := tree{"text.go": "package main\n\n// static const char *word(void) { return \"by C\"; }\n" +
		"import \"C\"\n\nfunc text() string { return C.GoString(C.word()) }\n"}
	loops := tree{"go.mod": moduleFile("example.org/m", "1.20"),
		"text.go": "package main\n\nimport \"fmt\"\n\nfunc text() string {\n" +
			"\tvar all []func() int\n\tfor i := 0; i < 3; i++ {\n" +
			"\t\tall = append(all, func() int { return i })\n\t}\n" +
			"\treturn fmt.Sprint(all[0](), all[1](), all[2]())\n}\n"}
	required := "require example.org/dep v1.0.0"
	return []shape{
		{name: "race", files: plain, flags: []string{"--", "-race"}, env: []string{"CGO_ENABLED=1"},
			ready: withCompiler, check: hasSetting("-race", "true")},
		{name: "cgo", files: plain.with(c), env: []string{"CGO_ENABLED=1"}, ready: withCompiler,
			text: "by C", check: hasSetting("CGO_ENABLED", "1")},
		{name: "PIE", files: plain, flags: []string{"--", "-buildmode=pie"},
			check: isOfType(elf.ET_DYN, elf.EM_X86_64, elf.EM_AARCH64)},
		{name: "trimpath", files: plain, flags: []string{"--", "-trimpath"},
			check: hasSetting("-trimpath", "true")},
		{name: "vendored", text: "vendored", files: dependent.with(
			tree{"go.mod": moduleFile("example.org/m", "1.22", required),
				"vendor/modules.txt": "# example.org/dep v1.0.0\n## explicit; go 1.22\n" +
					"example.org/dep\n"},
			tree{"vendor/example.org/dep/dep.go": dependency("d", "", "vendored")["d/dep.go"]})},
		{name: "workspace", text: "of the workspace", in: "m", files: tree{
			"go.work":   "go 1.22\n\nuse ./m\n\nuse ./other\n\nreplace example.org/dep => ./dep\n",
			"m/go.mod":  moduleFile("example.org/m", "1.22"),
			"m/main.go": server, "m/text.go": strings.ReplaceAll(dependentText, "example.org/dep",
				"example.org/other"),
			"other/go.mod": moduleFile("example.org/other", "1.22", required),
			"other/other.go": "package dep\n\nimport \"example.org/dep\"\n\n" +
				"func Text() string { return dep.Text() }\n",
		}.with(dependency("dep", "example.org/dep", "of the workspace"))},
		{name: "replaced by a directory", text: "replaced", in: "m", files: tree{
			"m/go.mod": moduleFile("example.org/m", "1.22", required,
				"replace example.org/dep => ../dep"), "m/main.go": server,
			"m/text.go": dependentText,
		}.with(dependency("dep", "example.org/dep", "replaced"))},
		{name: "private module", text: "private", files: dependent.with(
			tree{"text.go": strings.ReplaceAll(dependentText, "example.org/dep",
				"git.example.org/team/dep.git")}), ready: withPrivateModule},
		{name: "package in the module cache", text: "from a proxy",
			pkg: "example.org/m/cmd/served@v1.2.3", ready: withModuleInProxy},
		{name: "toolchain in the module cache", files: plain, ready: withToolchain},
		{name: "language of Go 1.20", files: plain.with(loops), text: "3 3 3"},
		{name: "no raised module with --pin", files: plain, flags: []string{"--pin"}},
		{name: "arm64", files: plain, env: []string{"GOARCH=arm64"}, unstarted: true,
			check: isOfType(elf.ET_EXEC, elf.EM_AARCH64)},
	}
}

// shapeBuild holds what a shape is built with.
type shapeBuild struct {
	dir     string // of the files
	env     []string
	release string // of Go, which is to build it; "": any
}

// TestShapes builds a server in each of the ways in which Go programs are built, and asks it on a
// slice.
func TestShapes(t *testing.T) {
	need.Long(t, "a build of a minute each, some of all packages")
	need.NetNS(t)
	b := newBuilder(t)
	for _, sh := range shapes() {
		t.Run(sh.name, func(t *testing.T) {
			s := &shapeBuild{dir: t.TempDir(), env: sh.env}
			sh.files.writeTo(t, s.dir)
			if sh.ready != nil {
				sh.ready(t, s)
			}
			binary := filepath.Join(t.TempDir(), "program")
			flags := sh.flags
			if sh.pkg == "" {
				sh.pkg = "."
			}
			at := slices.Index(flags, "--")
			if at < 0 {
				at = len(flags)
			}
			args := slices.Concat([]string{"-o", binary}, flags[:at], []string{sh.pkg}, flags[at:])
			out, err := b.build(t, filepath.Join(s.dir, sh.in), s.env, args...)
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if sh.check != nil {
				sh.check(t, binary)
			}
			if info, err := buildinfo.ReadFile(binary); err != nil ||
				s.release != "" && info.GoVersion != s.release {
				t.Errorf("built by %v, %v, want %s", info, err, s.release)
			}
			if sh.unstarted {
				return
			}
			if sh.text == "" {
				sh.text = "plain"
			}
			for _, m := range modes()[:2] {
				t.Run(m.name, func(t *testing.T) { askShape(t, b, m, binary, sh.text) })
			}
		})
	}
}

// askShape starts a program and asks it.
func askShape(t *testing.T, b *builder, m mode, binary, want string) {
	t.Helper()
	p := program{sockets: map[string]int{"tcp_listener": 1},
		args: func(*testing.T, string, string) []string { return nil }}
	s := start(t, b, p, m, binary, "")
	before := s.kernelTraffic(t)
	if got := askProcess(t, s); got != want {
		t.Errorf("it answers %q, want %q", got, want)
	}
	counts, err := s.sliceSockets()
	if err != nil || counts["tcp_accepted"] != 1 {
		t.Errorf("accepted by the slice: %v, %v", counts, err)
	}
	if after := s.kernelTraffic(t); after["Tcp:PassiveOpens"] != before["Tcp:PassiveOpens"] {
		t.Errorf("by the kernel, before and after:\n%v\n%v", before, after)
	}
}

// build runs rdma-netstack build in a directory, with variables, and returns what it prints.
func (b *builder) build(t *testing.T, dir string, env []string, args ...string) (string, error) {
	t.Helper()
	source, err := filepath.Abs(source)
	must(t, err)
	cmd := exec.CommandContext(t.Context(), b.command,
		slices.Concat([]string{"build", "--source", source}, args)...)
	cmd.Dir = dir
	cmd.Env = append(cmd.Environ(), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	return out.String(), err
}

func withCompiler(t *testing.T, _ *shapeBuild) {
	t.Helper()
	need.Compiler(t)
}

// hasSetting checks a setting of the build that a program names.
func hasSetting(key, value string) func(*testing.T, string) {
	return func(t *testing.T, binary string) {
		t.Helper()
		info, err := buildinfo.ReadFile(binary)
		must(t, err)
		for _, s := range info.Settings {
			if s.Key == key && s.Value == value {
				return
			}
		}
		t.Errorf("no setting %s=%s among %v", key, value, info.Settings)
	}
}

// isOfType checks the kind of file and the machine of a program.
func isOfType(kind elf.Type, machines ...elf.Machine) func(*testing.T, string) {
	return func(t *testing.T, binary string) {
		t.Helper()
		f, err := elf.Open(binary)
		must(t, err)
		defer f.Close()
		if f.Type != kind || !slices.Contains(machines, f.Machine) {
			t.Errorf("it is %v of %v, want %v of %v", f.Type, f.Machine, kind, machines)
		}
	}
}

// goEnv returns a value of go env.
func goEnv(t *testing.T, name string) string {
	t.Helper()
	return strings.TrimSpace(run(t, ".", "go", "env", name))
}

// ownModuleCache makes a build download its modules anew from the module cache of this user, which
// serves as a proxy, and before it from others.
func (s *shapeBuild) ownModuleCache(t *testing.T, before ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	proxies := append(before, "file://"+filepath.Join(goEnv(t, "GOMODCACHE"), "cache", "download"),
		goEnv(t, "GOPROXY"))
	s.env = append(s.env, "GOMODCACHE="+dir, "GOPROXY="+strings.Join(proxies, ","),
		"GOFLAGS=-modcacherw -trimpath")
	return dir
}

// withPrivateModule puts a module into a repository of git, and has go find it there as one of
// GOPRIVATE: neither a proxy nor the checksum database knows it.
func withPrivateModule(t *testing.T, s *shapeBuild) {
	t.Helper()
	git := need.Tool(t, "git")
	repository := t.TempDir()
	dependency("dep", "git.example.org/team/dep.git", "private").writeTo(t, repository)
	dir := filepath.Join(repository, "dep")
	for _, args := range [][]string{{"init", "-q"}, {"add", "."},
		{"-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-q", "-m", "first"},
		{"tag", "v1.0.0"}} {
		run(t, dir, git, args...)
	}
	s.ownModuleCache(t)
	s.env = append(s.env, "GOPRIVATE=git.example.org", "GIT_CONFIG_COUNT=1",
		"GIT_CONFIG_KEY_0=url.file://"+dir+".insteadOf",
		"GIT_CONFIG_VALUE_0=https://git.example.org/team/dep")
	tree{"go.mod": moduleFile("example.org/m", "1.22",
		"require git.example.org/team/dep.git v1.0.0")}.writeTo(t, s.dir)
	cmd := exec.Command("go", "mod", "tidy")
	cmd.Dir, cmd.Env = s.dir, append(os.Environ(), s.env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go mod tidy: %v\n%s", err, out)
	}
}

// withModuleInProxy puts a module with a main package into a proxy of files.
func withModuleInProxy(t *testing.T, s *shapeBuild) {
	t.Helper()
	const tag = "v1.2.3"
	proxy := t.TempDir()
	mod := moduleFile("example.org/m", "1.22")
	files := tree{"go.mod": mod, "cmd/served/main.go": server,
		"cmd/served/text.go": strings.ReplaceAll(constantText, "plain", "from a proxy")}
	var archive bytes.Buffer
	w := zip.NewWriter(&archive)
	for name, text := range files {
		f, err := w.Create("example.org/m@" + tag + "/" + name)
		must(t, err)
		_, err = io.WriteString(f, text)
		must(t, err)
	}
	must(t, w.Close())
	tree{"list": tag + "\n", tag + ".mod": mod, tag + ".zip": archive.String(),
		tag + ".info": "{\"Version\":\"" + tag + "\"}"}.writeTo(t,
		filepath.Join(proxy, "example.org", "m", "@v"))
	s.ownModuleCache(t, "file://"+proxy)
	// The copy that rdma-netstack build makes of it is not kept for the next test.
	s.env = append(s.env, "GONOSUMDB=example.org", "XDG_CACHE_HOME="+t.TempDir(),
		"GOCACHE="+goEnv(t, "GOCACHE"))
}

// withToolchain makes a go command of the module cache build: the newest release, or the one
// before.
func withToolchain(t *testing.T, s *shapeBuild) {
	t.Helper()
	releases := strings.Fields(run(t, ".", "./releases.sh"))
	mine := "go" + goVersion(t)
	releases = slices.DeleteFunc(releases, func(r string) bool {
		return version.Compare(r, "go1.26.3") < 0 || r == mine
	})
	if len(releases) == 0 {
		need.That(t, "toolchain", fmt.Errorf("no release besides %s that builds this", mine))
	}
	s.release = releases[len(releases)-1]
	s.env = append(s.env, "GOTOOLCHAIN="+s.release)
}

func goVersion(t *testing.T) string {
	t.Helper()
	return strings.TrimPrefix(goEnv(t, "GOVERSION"), "go")
}

// TestBuildFlags tries the flags of rdma-netstack build that need no slice.
func TestBuildFlags(t *testing.T) {
	need.Long(t, "a build")
	b := newBuilder(t)
	plain := plainServer()
	old := plain.with(tree{"go.mod": moduleFile("example.org/m", "1.22",
		"require golang.org/x/net v0.30.0"), "text.go": "package main\n\n" +
		"import \"golang.org/x/net/idna\"\n\n" +
		"func text() string { s, _ := idna.ToASCII(\"bücher\"); return s }\n"})
	build := func(files tree, args ...string) (dir, out string, err error) {
		dir = filepath.Join(t.TempDir(), "a name", "served")
		files.writeTo(t, dir)
		if files["go.mod"] != plain["go.mod"] {
			run(t, dir, "go", "mod", "tidy")
		}
		out, err = b.build(t, dir, nil, args...)
		return dir, out, err
	}
	isProgram := func(dir, name string, want bool) {
		t.Helper()
		info, err := os.Stat(filepath.Join(dir, name))
		if there := err == nil && info.Mode()&0o111 != 0; there != want {
			t.Errorf("a program %s: %v, want %v", name, there, want)
		}
	}

	dir, out, err := build(plain, "-n", ".")
	if err != nil || !strings.HasPrefix(out, "cd ") {
		t.Fatalf("-n: %v\n%s", err, out)
	}
	isProgram(dir, "served", false)
	run(t, dir, "sh", "-c", out) // what it prints is the command
	isProgram(dir, "served", true)

	dir, out, err = build(plain, ".")
	if err != nil || out != "" {
		t.Errorf("without flags: %v\n%s", err, out)
	}
	isProgram(dir, "served", true)

	dir, out, err = build(plain, "-o", "other", ".")
	if err != nil {
		t.Errorf("-o: %v\n%s", err, out)
	}
	isProgram(dir, "other", true)
	isProgram(dir, "served", false)

	_, out, err = build(plain, "-o", t.TempDir(), ".")
	if err == nil || !strings.Contains(out, "is a directory: name a file") {
		t.Errorf("-o of a directory: %v\n%s", err, out)
	}

	_, out, err = build(old, ".")
	if err != nil || !strings.Contains(out, "golang.org/x/net v0.30.0 => ") {
		t.Errorf("an old module: %v\n%s", err, out)
	}
	dir, out, err = build(old, "--pin", ".")
	if err == nil || !strings.Contains(out, "--pin: ") ||
		!strings.Contains(out, "golang.org/x/net v0.30.0 => ") {
		t.Errorf("--pin: %v\n%s", err, out)
	}
	isProgram(dir, "served", false)
	text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil || !strings.Contains(string(text), "golang.org/x/net v0.30.0") {
		t.Errorf("go.mod is written: %v\n%s", err, text)
	}
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if name := d.Name(); err == nil && (name == "go.work" || strings.HasPrefix(name, "zz_")) {
			t.Errorf("%s is in the program's directory", path)
		}
		return err
	}))
}

// TestRaceReported: the race detector that a program is built with reports its races.
func TestRaceReported(t *testing.T) {
	need.Long(t, "a build with the race detector")
	need.NetNS(t)
	need.Compiler(t)
	b := newBuilder(t)
	dir, binary := t.TempDir(), filepath.Join(t.TempDir(), "program")
	tree{"go.mod": moduleFile("example.org/m", "1.22"), "main.go": server,
		"text.go": "package main\n\nvar n int\n\nfunc text() string {\n" +
			"\tdone := make(chan bool)\n\tgo func() { n++; close(done) }()\n\tn++\n\t<-done\n" +
			"\treturn \"raced\"\n}\n",
	}.writeTo(t, dir)
	out, err := b.build(t, dir, []string{"CGO_ENABLED=1"}, "-o", binary, ".", "--", "-race")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s := start(t, b, program{sockets: map[string]int{"tcp_listener": 1},
		args: func(*testing.T, string, string) []string { return nil }}, modes()[1], binary, "")
	if got := askProcess(t, s); got != "raced" {
		t.Errorf("it answers %q", got)
	}
	s.await(t, "report of the race", func() bool {
		return strings.Contains(s.log.String(), "WARNING: DATA RACE")
	})
}

// TestNamesWithCGO: names of a program with cgo are asked for by the slice, as Go's resolver does,
// unless the program says that C's is to.
func TestNamesWithCGO(t *testing.T) {
	need.Long(t, "a build with cgo")
	need.NetNS(t)
	need.Compiler(t)
	unshare := need.Tool(t, "unshare")
	b := newBuilder(t)
	dir, binary := t.TempDir(), filepath.Join(t.TempDir(), "program")
	tree{"go.mod": moduleFile("example.org/m", "1.22"), "main.go": server,
		"text.go": "package main\n\nimport (\n\t\"fmt\"\n\t\"net\"\n)\n\n// int one(void);\n" +
			"import \"C\"\n\nfunc text() string {\n" +
			"\treturn fmt.Sprint(net.LookupHost(\"a.example\"))\n}\n",
		"one.c": "int one(void) { return 1; }\n"}.writeTo(t, dir)
	if out, err := b.build(t, dir, []string{"CGO_ENABLED=1"}, "-o", binary, "."); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	resolv := filepath.Join(dir, "resolv.conf")
	must(t, os.WriteFile(resolv, []byte("nameserver "+outsideIP+"\n"), 0o644))
	for _, tt := range []struct {
		name     string
		env      []string
		byKernel bool
	}{
		{name: "Go's resolver"},
		{name: "C's resolver", env: []string{"GODEBUG=netdns=cgo"}, byKernel: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := modes()[1]
			m.env = append(slices.Clone(m.env), tt.env...)
			s := &session{dir: t.TempDir(), log: &lockedBuffer{}, mode: m, b: b}
			s.host, s.outside = newNetwork(t)
			answerNames(t, s)
			s.startProcess(t, unshare, []string{"-m", "sh", "-c",
				"mount --bind \"$0\" /etc/resolv.conf && exec \"$1\"", resolv, binary},
				append([]string{"RUNTIME_DIRECTORY=" + s.dir}, m.env...))
			s.await(t, "listener", func() bool {
				counts, err := s.sliceSockets()
				return err == nil && counts["tcp_listener"] == 1
			})
			before := s.kernelTraffic(t)
			if got := askProcess(t, s); got != "[192.0.2.77] <nil>" {
				t.Errorf("the name is %q", got)
			}
			after := s.kernelTraffic(t)
			const sent = "Udp:OutDatagrams"
			if (before[sent] != after[sent]) != tt.byKernel {
				t.Errorf("by the kernel, before and after:\n%v\n%v", before, after)
			}
			if logged := strings.Contains(s.log.String(), "names are resolved by C"); logged !=
				tt.byKernel {
				t.Errorf("logged that C resolves names: %v, want %v", logged, tt.byKernel)
			}
		})
	}
}

// answerNames answers questions for A records outside, by UDP and by TCP.
func answerNames(t *testing.T, s *session) {
	t.Helper()
	c, err := s.outside.ListenPacket("udp4", outsideIP+":53")
	must(t, err)
	t.Cleanup(func() { c.Close() })
	go func() {
		for b := make([]byte, 1500); ; {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			c.WriteTo(answerTo(b[:n]), from)
		}
	}()
	l, err := s.outside.Listen("tcp4", outsideIP+":53")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go answerStream(c)
		}
	}()
}

// answerStream answers questions of a connection, each behind its length.
func answerStream(c net.Conn) {
	defer c.Close()
	for b := make([]byte, 1500); ; {
		if _, err := io.ReadFull(c, b[:2]); err != nil {
			return
		}
		q := b[:min(int(binary.BigEndian.Uint16(b)), len(b))]
		if _, err := io.ReadFull(c, q); err != nil {
			return
		}
		a := answerTo(q)
		if _, err := c.Write(binary.BigEndian.AppendUint16(nil, uint16(len(a)))); err != nil {
			return
		}
		if _, err := c.Write(a); err != nil {
			return
		}
	}
}

// answerTo makes the answer to a question (RFC 1035 section 4): one address for type A, none for
// others.
func answerTo(q []byte) []byte {
	end := 12
	for end < len(q) && q[end] != 0 {
		end += int(q[end]) + 1
	}
	end += 5 // the root, type and class
	if end > len(q) {
		return nil
	}
	a := bytes.Clone(q[:end])
	a[2], a[3] = 0x84, 0x80 // an answer, authoritative; recursion is available
	copy(a[6:12], "\x00\x00\x00\x00\x00\x00")
	if q[end-3] == 1 { // A
		a[7] = 1
		a = append(a, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 77)
	}
	return a
}

// get asks a server outside or on the slice by a client on the kernel of a host.
func get(t *testing.T, dial func(context.Context, string, string) (net.Conn, error),
	url string) (string, error) {
	t.Helper()
	c := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: dial,
		DisableKeepAlives: true}}
	r, err := c.Get(url)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	return string(text), err
}
