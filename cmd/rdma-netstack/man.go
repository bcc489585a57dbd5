package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/running"
)

func manCommand(out streams) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use: "man [COMMAND]", Short: "print a manual page",
		ValidArgsFunction: completeCommand,

		Long: "Prints the manual page of a command, or of the program, in the format of man(1).",
		Example: `  rdma-netstack man serve http | man -l -
  rdma-netstack man --dir /usr/share/man/man1`,
		RunE: func(cmd *cobra.Command, words []string) error {
			of, left, err := cmd.Root().Find(words)
			switch {
			case err != nil || len(left) > 0:
				return unknownCommand(of, left)
			case dir != "":
				return writeManPages(of, dir)
			}
			return printMan(of, out.stdout)
		},
	}
	addFlags(cmd, "Flags", opt("dir", "DIR", &dir,
		"write the pages of all commands to this directory, one file each"))
	return cmd
}

// completeCommand offers the next word of a command.
func completeCommand(cmd *cobra.Command, before []string, start string) ([]string,
	cobra.ShellCompDirective) {
	var words []string
	if of, left, err := cmd.Root().Find(before); err == nil && len(left) == 0 {
		for _, c := range of.Commands() {
			if c.IsAvailableCommand() && strings.HasPrefix(c.Name(), start) {
				words = append(words, cobra.CompletionWithDesc(c.Name(), c.Short))
			}
		}
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

// manFlag matches a flag in a page of package doc, which puts its text behind a tab.
var manFlag = regexp.MustCompile(`(?m)^(?:\.PP\n)?(\\fB-.*)\n\t`)

// printMan prints the manual page of a command. Package doc shows a flag's default where the help
// has a word for its value, so the word takes its place, and the default follows the text.
func printMan(cmd *cobra.Command, w io.Writer) error {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.NoOptDefVal == "" {
			if f.DefValue != "" {
				f.Usage += " (default " + f.DefValue + ")"
			}
			f.DefValue = f.Value.Type()
		}
	})
	b := thisBuild()
	date, err := time.Parse(time.DateOnly, b.date)
	if err != nil { // no commit
		date = time.Now()
	}
	var buf bytes.Buffer
	if err := doc.GenMan(cmd, &doc.GenManHeader{Section: "1", Date: &date, Manual: "User Commands",
		Source: "rdma-netstack " + b.Version}, &buf); err != nil {
		return err
	}
	page := manFlag.ReplaceAllString(buf.String(), ".TP\n$1\n")
	page = strings.Replace(page, date.Format("Jan 2006"), date.Format(time.DateOnly), 1)
	_, err = io.WriteString(w, page)
	return err
}

// writeManPages writes the manual pages of a command and all below it.
func writeManPages(cmd *cobra.Command, dir string) error {
	if !cmd.IsAvailableCommand() && cmd.HasParent() {
		return nil
	}
	for _, c := range cmd.Commands() {
		if err := writeManPages(c, dir); err != nil {
			return err
		}
	}
	var page bytes.Buffer
	if err := printMan(cmd, &page); err != nil {
		return err
	}
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-") + ".1"
	return os.WriteFile(filepath.Join(dir, name), page.Bytes(), 0o644)
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

func deviceOrNetdevNames() []string { return append(deviceNames(), netdevNames()...) }

func runningServers(cmd *cobra.Command) func() []string {
	return func() (pids []string) {
		all, _ := running.Find(cmd.Context(), running.Directories(os.Getenv))
		for _, s := range all {
			pids = append(pids, fmt.Sprint(s.PID))
		}
		return pids
	}
}
