package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// said runs the program in this process.
func said(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(args, &out, &errs)
	return code, out.String(), errs.String()
}

// allCommands returns the commands that the help lists, and the program itself.
func allCommands() (all []*cobra.Command) {
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		all = append(all, c)
		for _, below := range c.Commands() {
			if below.IsAvailableCommand() {
				walk(below)
			}
		}
	}
	walk(rootCommand(streams{&output{to: io.Discard}, io.Discard, nil}))
	return all
}

// typed returns how a command is typed, without the program.
func typed(c *cobra.Command) []string { return strings.Fields(c.CommandPath())[1:] }

// TestHelp: the help of each command fits a terminal of 100 columns and has each flag, with what it
// does and a word for its value.
func TestHelp(t *testing.T) {
	commands, flags := allCommands(), 0
	for _, c := range commands {
		code, help, stderr := said(append(typed(c), "--help")...)
		if code != exitDone || stderr != "" || !strings.HasPrefix(help, "Usage: "+c.CommandPath()) {
			t.Errorf("%s: code %d, %q, %.50q", c.CommandPath(), code, stderr, help)
		}
		if c.Short == "" || c.Long == "" {
			t.Errorf("%s has no description", c.CommandPath())
		}
		for line := range strings.Lines(help) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > helpWidth {
				t.Errorf("%s: %d columns: %s", c.CommandPath(), n, line)
			}
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			flags++
			if f.Name != "help" && f.Name != "version" && !strings.Contains(help, "--"+f.Name+" ") {
				t.Errorf("%s: the help has no --%s", c.CommandPath(), f.Name)
			}
			if f.Usage == "" || strings.ContainsAny(f.Usage, "`") {
				t.Errorf("%s --%s: help %q", c.CommandPath(), f.Name, f.Usage)
			}
			if _, named := f.Value.(namedValue); !named && f.Value.Type() != "bool" {
				t.Errorf("%s --%s: no word for its value", c.CommandPath(), f.Name)
			}
		})
	}
	if len(commands) < 25 || flags < 150 {
		t.Errorf("%d commands, %d flags", len(commands), flags)
	}
}

// TestFlagErrors: bad input gets one sentence that says what to write.
func TestFlagErrors(t *testing.T) {
	for line, want := range map[string]string{
		"serve http --nosuch":    "unknown flag --nosuch (see rdma-netstack serve http --help)",
		"serve http -device sim": "unknown flag -device: write --device (",
		"serve http -root=/srv":  "unknown flag -root=/srv: write --root=/srv (",
		"ss -tX":                 "unknown flag -X (",
		"serve http --mtu":       "missing value after --mtu (",
		"capture -w":             "missing value after -w (",
		"serve http --mtu x":     `invalid value "x" for --mtu: want a number (`,
		"serve http --mtu 1e99":  `invalid value "1e99" for --mtu: want a number (`,
		"ss --pid 99999999999999999999": `invalid value "99999999999999999999" for --pid: ` +
			`out of range (`,
		"serve http --rate x":   `invalid value "x" for --rate: want bytes per second, such as `,
		"serve http --rate 1.5": `"1.5" for --rate: want bytes per second, such as 1000000, for `,
		"serve http --rate -1":  `"-1" for --rate: want bytes per second, such as `,
		"serve http --rate":     "missing value after --rate (",
		"serve dns --rate 99999999999999999999": `for --rate: want bytes ` +
			`per second, such as `,
		"serve http --rate 10/8=5":  `for --rate: want bytes per second, such as `,
		"serve http --rate ::/8=x":  `for --rate: want bytes per second, such as `,
		"serve http --drain x":      `"x" for --drain: want a time, such as 10s or 2m (`,
		"serve http --seccomp=x":    `"x" for --seccomp: want true or false (`,
		"serve http --mac x":        `want six bytes, such as 02:00:5e:10:00:01, or netdev (`,
		"serve http --queues 65":    `want 1 to 64, or auto (`,
		"serve http --gateway x":    `want an IP address, such as 192.0.2.1 or 2001:db8::1 (`,
		"serve htp":                 `rdma-netstack serve: no command "htp": did you mean http? (`,
		"sever http":                `rdma-netstack: no command "sever": want one of build, capture, `,
		"statuz --json":             `no command "statuz": did you mean status? (`,
		"help serve htp":            `no command "htp": did you mean http? (`,
		"man serve htp":             `no command "htp": did you mean http? (`,
		"completion bash extra":     `unexpected argument "extra" (`,
		"version now":               `unexpected argument "now" (`,
		"serve":                     "no command given: want one of dns, http, iperf3 (",
		"status netstat -s now":     `unexpected argument "now" (`,
		"serve iperf3 --listen":     "missing value after --listen (",
		"serve http --log-format x": `"x" for --log-format: want text or json (`,
	} {
		code, stdout, stderr := said(strings.Fields(line)...)
		if code != exitUsage || stdout != "" || !strings.Contains(stderr, want) ||
			strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: code %d, %q, %q; want %q", line, code, stdout, stderr, want)
		}
	}
}

// TestFlagValues: the program takes the values that completion offers.
func TestFlagValues(t *testing.T) {
	offered := 0
	for _, c := range allCommands() {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			complete, _ := c.GetFlagCompletionFunc(f.Name)
			if complete == nil || strings.Contains(f.Value.Type(), "WIRE") { // only its beginning
				return
			}
			c.SetContext(t.Context())
			words, _ := complete(c, nil, "")
			for _, w := range words {
				w, _, _ = strings.Cut(w, "\t")
				offered++
				args := append(typed(c), "--"+f.Name, w, "--help")
				if code, _, stderr := said(args...); code != exitDone {
					t.Errorf("%s: %s", strings.Join(args, " "), stderr)
				}
			}
		})
	}
	if offered < 50 {
		t.Errorf("%d values offered", offered)
	}
}

// TestCompletionWords: what may come next on a command line.
func TestCompletionWords(t *testing.T) {
	const none, files, dirs = ":4", ":0", ":16"
	for _, tt := range []struct {
		words string // the last one is the one to complete, _ is empty
		want  string // all of them, without descriptions, and cobra's directive
	}{
		{"de", "demo devices " + none},
		{"pkt", "pktgen " + none},
		{"serve _", "dns http iperf3 " + none},
		{"help serve d", "dns " + none},
		{"man serve d", "dns " + none},
		{"serve http --roo", "--root " + none},
		{"serve dns --max-o", "--max-outage " + none},
		{"version --roo", none},
		{"serve http --rx-mode _", "adaptive polling interrupt " + none},
		{"serve http --rx-mode=p", "polling " + none},
		{"serve http --sim-wire t", "tap: :6"},
		{"serve http --mtu _", none},
		{"capture -Q in", "in inout " + none},
		{"serve http --root /sr", dirs},
		{"serve dns --zone _", files},
		{"serve dns --zone x --zo", "--zone " + none},
		{"status _", "errors filter health netstat rules stats " + none},
		{"status health d", "dump device " + none},
		{"heal", none}, // the former name
		{"status health dump d", "device " + none},
		{"profile c", "cpu " + none},
		{"tea _", files}, // whatever it is
		{"completion _", "bash fish powershell zsh " + none},
		{"ext", none}, // Wireshark's
	} {
		words := append([]string{"__complete"}, strings.Fields(tt.words)...)
		if last := &words[len(words)-1]; *last == "_" {
			*last = ""
		}
		_, stdout, _ := said(words...)
		var got []string
		for line := range strings.Lines(stdout) {
			word, _, _ := strings.Cut(strings.TrimRight(line, "\n"), "\t")
			got = append(got, word)
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%q: got %q, want %q", tt.words, got, tt.want)
		}
	}
}

// shells are what makes each shell complete a line, and print the words.
func shells() map[string][]string {
	return map[string][]string{
		"bash": {"--norc", "-c", `source /usr/share/bash-completion/bash_completion
			source <(rdma-netstack completion bash)
			COMP_WORDS=(rdma-netstack "$@"); COMP_CWORD=$#; COMP_LINE="${COMP_WORDS[*]}"
			COMP_POINT=${#COMP_LINE}; COMP_TYPE=9
			compopt() { [[ "$*" != "+o default" ]] || nofiles=1; }
			__start_rdma-netstack
			[[ ${#COMPREPLY[@]} != 0 || $nofiles || "$(complete -p rdma-netstack)" != *"-o default"* ]] ||
				COMPREPLY=(*)
			for word in "${COMPREPLY[@]}"; do printf '%s\n' "${word%% *}"; done`, "bash"},
		// The two functions print what they would show.
		"zsh": {"-f", "-c", `autoload -U compinit; compinit -u -D
			source <(rdma-netstack completion zsh)
			_files() { print -rl -- *(/); [[ "$*" == *-g* ]] && print -rl -- *(.); true }
			_arguments() { print -rl -- *(/); [[ "$*" == *-/* ]] || print -rl -- *(.) }
			_describe() {
				local -a all; all=("${(@)${(@P)argv[2]}%%:*}"); [[ -n $all ]] && print -rl -- $all }
			words=(rdma-netstack "$@"); CURRENT=$(( $# + 1 )); BUFFER="$words"; CURSOR=$#BUFFER
			${_comps[rdma-netstack]}; true`, "zsh"},
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
	if err := errors.Join(os.Symlink(program, filepath.Join(bin, "rdma-netstack")),
		os.Mkdir(filepath.Join(work, "folder"), 0o755),
		os.WriteFile(filepath.Join(work, "data"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	for shell, script := range shells() {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			path := need.Tool(t, shell)
			if shell == "bash" {
				_, err := os.Stat("/usr/share/bash-completion/bash_completion")
				need.That(t, "bash-completion", err)
			}
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
				if shell == "fish" && tt.want == "folder" {
					tt.want = "data folder" // it does not filter
				}
				got := strings.Fields(string(out))
				slices.Sort(got)
				if err != nil || strings.Join(got, " ") != tt.want {
					t.Errorf("%q: got %q, %v; want %q", tt.words, got, err, tt.want)
				}
			}
		})
	}
}

// TestManPages: each command has a manual page with all of its flags, of which mandoc finds nothing
// wrong.
func TestManPages(t *testing.T) {
	mandoc := need.Tool(t, "mandoc")
	dir := t.TempDir()
	if code, _, stderr := said("man", "--dir", dir); code != exitDone {
		t.Fatal(stderr)
	}
	for _, c := range allCommands() {
		name := strings.ReplaceAll(c.CommandPath(), " ", "-")
		file := filepath.Join(dir, name+".1")
		lint, _ := exec.Command(mandoc, "-Tlint", "-Wwarning", file).CombinedOutput()
		if len(lint) > 0 {
			t.Errorf("%s", lint)
		}
		out, err := exec.Command(mandoc, "-Tascii", "-Owidth=200", file).Output()
		if err != nil {
			t.Fatal(err)
		}
		text := string(out)
		for i := strings.IndexByte(text, '\b'); i > 0; i = strings.IndexByte(text, '\b') {
			text = text[:i-1] + text[i+1:] // bold and underlined characters
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !strings.Contains(text, "--"+f.Name) {
				t.Errorf("%s: no --%s", name, f.Name)
			}
		})
		for of, want := range map[string]string{
			"rdma-netstack serve http": "--rx-mode=MODE\n",
			"rdma-netstack":            "rdma-netstack-build(1)",
			"rdma-netstack ss":         "-t, --tcp",
			"rdma-netstack pktgen tx":  "pktgen tx --device mlx5_1",
		} {
			if c.CommandPath() == of && !strings.Contains(text, want) {
				t.Errorf("%s: no %q", name, want)
			}
		}
	}
	if code, page, _ := said("man", "serve", "http"); code != exitDone ||
		!strings.Contains(page, "rx-mode") {
		t.Errorf("man serve http: code %d, %.40q", code, page)
	}
}
