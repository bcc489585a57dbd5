package main

import (
	"context"
	_ "embed"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/internal/usage"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/running"
)

const completionHelp = `Usage: rdma-netstack completion bash|zsh|fish

Prints the completion of commands, flags and values for a shell. The shell asks this program for
them, so it stays right after an update.

  bash  rdma-netstack completion bash > /usr/share/bash-completion/completions/rdma-netstack
  zsh   rdma-netstack completion zsh > /usr/share/zsh/site-functions/_rdma-netstack
  fish  rdma-netstack completion fish > /usr/share/fish/vendor_completions.d/rdma-netstack.fish

For one session: source <(rdma-netstack completion bash).
`

const manHelp = `Usage: rdma-netstack man

Prints the manual page: the help of all commands in the format of man(1).

  rdma-netstack man > /usr/share/man/man1/rdma-netstack.1
  rdma-netstack man | man -l -
`

func completionCommand() command {
	return command{name: "completion", line: "completion for bash, zsh and fish",
		help: completionHelp, run: completion}
}

func manCommand() command {
	return command{name: "man", line: "print the manual page",
		help: manHelp, run: man}
}

// The scripts ask "rdma-netstack completion words WORD..." for the words that may stand in place of
// the last one.
var (
	//go:embed completion/rdma-netstack.bash
	bashScript string
	//go:embed completion/_rdma-netstack
	zshScript string
	//go:embed completion/rdma-netstack.fish
	fishScript string
)

func completion(ctx context.Context, args []string, out streams) error {
	if len(args) > 0 && args[0] == "words" { // args[1:] may contain flags: they are not ours
		return printWords(ctx, args[1:], out)
	}
	shells, err := parseWords(newFlags(), args)
	if err != nil {
		return err
	}
	script := map[string]string{"bash": bashScript, "zsh": zshScript,
		"fish": fishScript}[strings.Join(shells, " ")]
	if script == "" {
		return usageError{fmt.Errorf("which shell? want one of bash, zsh and fish")}
	}
	_, err = fmt.Fprint(out.stdout, script)
	return err
}

func printWords(ctx context.Context, words []string, out streams) error {
	for _, word := range completer(ctx).Next(words) {
		fmt.Fprintln(out.stdout, word)
	}
	return out.stdout.err()
}

func completer(ctx context.Context) usage.Completer {
	c := usage.Completer{
		Commands: commandTable(),
		Words: map[string][]string{
			"health":     append([]string{"show", "recover", "dump"}, reporters()...),
			"completion": {"bash", "zsh", "fish"},
		},
		Values: map[string]func() []string{
			"--device":   func() []string { return append(deviceNames(), netdevNames()...) },
			"--to":       deviceNames,
			"--fallback": func() []string { return append(netdevNames(), "none") },
			"--pid":      func() []string { return runningServers(ctx) },
		},
	}
	for flag, values := range flagValues() {
		c.Values[flag] = func() []string { return values }
	}
	return c
}

// flagValues returns the values of flags that have but a few.
func flagValues() map[string][]string {
	wires := []string{"tap:", "packet:", "none"}
	return map[string][]string{
		"--backend":    {"auto", "rings", "packet"},
		"--rx-mode":    {"adaptive", "polling", "interrupt"},
		"--sim-card":   {"cx4lx", "cx5", "cx6dx", "cx7", "bf2"},
		"--sim-wire":   wires,
		"--sim-netdev": wires,
		"--to-wire":    wires,
		"--clients":    {"programs", "go"},
		"--links":      {"tap", "veth"},
	}
}

func commandTable() (all []usage.Command) {
	for _, c := range commands() {
		all = append(all, usage.Command{Name: c.name, Line: c.line, Help: c.help})
	}
	return all
}

// deviceNames returns the RDMA devices, with what each is, and the software NIC.
func deviceNames() []string {
	names := []string{simDevice + "\tthe software ConnectX"}
	all, _ := dv.List() // without a list there is none to offer
	for _, d := range all {
		names = append(names, d.Device()+"\t"+d.Netdev)
	}
	return names
}

func netdevNames() (names []string) {
	all, _ := net.Interfaces()
	for _, i := range all {
		if i.Flags&net.FlagLoopback == 0 {
			names = append(names, i.Name)
		}
	}
	return names
}

func runningServers(ctx context.Context) (pids []string) {
	all, _ := running.Find(ctx, running.Directories(os.Getenv))
	for _, s := range all {
		pids = append(pids, fmt.Sprint(s.PID))
	}
	return pids
}

func man(_ context.Context, args []string, out streams) error {
	if err := parse(newFlags(), args); err != nil {
		return err
	}
	b := thisBuild()
	page := usage.Manual{Program: "rdma-netstack", Line: "Go servers on a slice of an RDMA port",
		Version: b.Version, Date: b.date, Help: usageText()}
	_, err := fmt.Fprint(out.stdout, page.Man(commandTable()))
	return err
}
