package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/internal/usage"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// said runs the program in this process.
func said(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(args, &out, &errs)
	return code, out.String(), errs.String()
}

// TestHelpIsRight: each flag of a help text exists, and takes a value or none as the text says.
func TestHelpIsRight(t *testing.T) {
	for _, c := range commands() {
		flags := usage.Flags(c.help)
		for _, f := range flags {
			args := append(strings.Fields(c.name), f.Name)
			if f.Value != "" {
				_, _, stderr := said(args...)
				if !strings.Contains(stderr, "missing value after") {
					t.Errorf("%s %s without %s: %q", c.name, f.Name, f.Value, stderr)
				}
				continue
			}
			if code, _, stderr := said(append(args, "--help")...); code != exitDone {
				t.Errorf("%s %s takes a value: %q", c.name, f.Name, stderr)
			}
		}
		if len(flags) == 0 && strings.Contains(c.help, " --") {
			t.Errorf("%s: no flags found in its help", c.name)
		}
	}
}

// TestEveryFlagHasHelp: each flag that the source defines is in the help of a command.
func TestEveryFlagHasHelp(t *testing.T) {
	known := map[string]bool{}
	for _, c := range commands() {
		for _, f := range usage.Flags(c.help) {
			known[strings.TrimLeft(f.Name, "-")] = true
		}
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	defined := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") || file == "extcap.go" { // Wireshark's flags
			continue
		}
		for _, name := range definedFlags(t, file) {
			defined++
			if !known[name] {
				t.Errorf("%s: no help has flag %q", file, name)
			}
		}
	}
	if defined < 60 {
		t.Errorf("found %d flags in the source", defined)
	}
}

// definedFlags are the names in calls of methods of fs, a FlagSet, and in calls that are given it.
func definedFlags(t *testing.T, file string) (names []string) {
	tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(tree, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		on := append([]ast.Expr(nil), call.Args...)
		if method, ok := call.Fun.(*ast.SelectorExpr); ok {
			on = append(on, method.X)
		}
		if !slices.ContainsFunc(on, func(e ast.Expr) bool {
			id, ok := e.(*ast.Ident)
			return ok && id.Name == "fs"
		}) {
			return true
		}
		for _, arg := range call.Args {
			lit, ok := arg.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				continue
			}
			name, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Fatal(err)
			}
			if name != "" && !strings.HasPrefix(name, ":") { // a default listen address
				names = append(names, name)
			}
			break
		}
		return true
	})
	return names
}

// TestFlagValues: the program takes the values that completion offers.
func TestFlagValues(t *testing.T) {
	used := map[string]bool{}
	for _, c := range commands() {
		for _, f := range usage.Flags(c.help) {
			values := flagValues()[f.Name]
			if strings.Contains(f.Value, "|") {
				values = strings.Split(f.Value, "|")
			}
			for _, v := range values {
				used[f.Name] = true
				args := append(strings.Fields(c.name), f.Name, v, "--help")
				if code, _, stderr := said(args...); code != exitDone {
					t.Errorf("%s: %s", strings.Join(args, " "), stderr)
				}
			}
		}
	}
	for name := range flagValues() {
		if !used[name] {
			t.Errorf("no command has flag %s", name)
		}
	}
}

// TestCompletionWords: what may come next on a command line.
func TestCompletionWords(t *testing.T) {
	for _, tt := range []struct {
		name  string
		words []string
		want  []string // all of them, without descriptions
	}{
		{"command", []string{"de"}, []string{"demo", "devices"}},
		{"group", []string{"pkt"}, []string{"pktgen"}},
		{"second word", []string{"serve", ""}, []string{"http", "dns", "iperf3"}},
		{"after help", []string{"help", "serve", "d"}, []string{"dns"}},
		{"flag", []string{"serve", "http", "--roo"}, []string{"--root"}},
		{"flag of the shared part", []string{"serve", "dns", "--max-o"}, []string{"--max-outage"}},
		{"not of another command", []string{"version", "--roo"}, nil},
		{"value", []string{"serve", "http", "--rx-mode", ""},
			[]string{"adaptive", "polling", "interrupt"}},
		{"value after =", []string{"serve", "http", "--rx-mode=p"}, []string{"--rx-mode=polling"}},
		{"value that the help lists", []string{"capture", "-Q", "in"}, []string{"in", "inout"}},
		{"directory", []string{"serve", "http", "--root", "/sr"}, []string{":dir"}},
		{"file", []string{"serve", "dns", "--zone", ""}, []string{":file"}},
		{"flag after a value", []string{"serve", "dns", "--zone", "x", "--zo"}, []string{"--zone"}},
		{"words", []string{"health", "d"}, []string{"dump", "device"}},
		{"words not twice", []string{"health", "dump", "d"}, []string{"device"}},
		{"unknown command", []string{"tea", ""}, nil},
		{"two flags of a line", []string{"compare", "--sl"}, []string{"--slice"}},
		{"shell", []string{"completion", ""}, []string{"bash", "zsh", "fish"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, word := range completer(t.Context()).Next(tt.words) {
				word, _, _ = strings.Cut(word, "\t")
				got = append(got, word)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("%q: got %q, want %q", tt.words, got, tt.want)
			}
		})
	}
}

// shells are what makes each shell complete a line, and print the words.
func shells() map[string][]string {
	return map[string][]string{
		"bash": {"--norc", "-c", `source <(rdma-netstack completion bash)
			COMP_WORDS=(rdma-netstack "$@"); COMP_CWORD=$#; _rdma_netstack
			printf '%s\n' "${COMPREPLY[@]}"`, "bash"},
		// The two functions print what they would show.
		"zsh": {"-f", "-c", `autoload -U compinit; compinit -u -D
			source <(rdma-netstack completion zsh)
			_files() { print -rl -- *(/); [[ "$*" == -/ ]] || print -rl -- *(.) }
			_describe() { print -rl -- "${(@)${(@P)argv[-1]}%%:*}" }
			words=(rdma-netstack "$@"); CURRENT=$(( $# + 1 )); ${_comps[rdma-netstack]}; true`, "zsh"},
		"fish": {"--no-config", "-c", `rdma-netstack completion fish | source
			complete -C "rdma-netstack $argv" | string replace -r '/?\t.*|/$' ''; true`},
	}
}

// TestShells has the real shells complete command lines by the scripts that the program prints.
func TestShells(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin, work := t.TempDir(), t.TempDir()
	for _, err := range []error{
		os.Symlink(program, filepath.Join(bin, "rdma-netstack")),
		os.Mkdir(filepath.Join(work, "folder"), 0o755),
		os.WriteFile(filepath.Join(work, "data"), nil, 0o644),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for shell, script := range shells() {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			path := need.Tool(t, shell)
			for _, tt := range []struct {
				words []string
				want  string
			}{
				{[]string{"se"}, "serve"},
				{[]string{"serve", ""}, "dns http iperf3"},
				{[]string{"serve", "http", "--rx-mode", ""}, "adaptive interrupt polling"},
				{[]string{"serve", "dns", "--zone", ""}, "data folder"},
				{[]string{"serve", "http", "--root", ""}, "folder"},
			} {
				cmd := exec.Command(path, append(slices.Clone(script), tt.words...)...)
				cmd.Dir = work
				cmd.Env = append(os.Environ(), asProgram+"=1", "HOME="+bin,
					"PATH="+bin+":"+os.Getenv("PATH"))
				out, err := cmd.CombinedOutput()
				got := strings.Fields(string(out))
				slices.Sort(got)
				if err != nil || strings.Join(got, " ") != tt.want {
					t.Errorf("%q: got %q, %v; want %q", tt.words, got, err, tt.want)
				}
			}
		})
	}
}

// TestManPage: the manual page has every command and flag, and mandoc finds nothing wrong with it.
func TestManPage(t *testing.T) {
	mandoc := need.Tool(t, "mandoc")
	code, page, stderr := said("man")
	if code != exitDone {
		t.Fatal(stderr)
	}
	file := filepath.Join(t.TempDir(), "rdma-netstack.1")
	if err := os.WriteFile(file, []byte(page), 0o644); err != nil {
		t.Fatal(err)
	}
	lint, _ := exec.Command(mandoc, "-Tlint", "-Wwarning", file).CombinedOutput()
	for line := range strings.Lines(string(lint)) {
		if !strings.Contains(line, "missing date") { // a test has no commit
			t.Error(line)
		}
	}
	out, err := exec.Command(mandoc, "-Tascii", "-Owidth=200", file).Output()
	if err != nil {
		t.Fatal(err)
	}
	text := string(out)
	for i := strings.IndexByte(text, '\b'); i > 0; i = strings.IndexByte(text, '\b') {
		text = text[:i-1] + text[i+1:] // bold and underlined characters
	}
	for _, c := range commands() {
		if !strings.Contains(text, "\n   "+c.name+"\n") {
			t.Errorf("no section of %s", c.name)
		}
		for _, f := range usage.Flags(c.help) {
			if !strings.Contains(text, " "+f.Name) {
				t.Errorf("%s: no %s", c.name, f.Name)
			}
		}
	}
	for _, want := range []string{"--rx-mode MODE\n", "EXIT STATUS\n",
		"  rdma-netstack serve http --device sim\n",
		"The slice: the same flags as of serve http."} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q", want)
		}
	}
}
