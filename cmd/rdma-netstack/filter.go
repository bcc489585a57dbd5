package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	neturl "net/url"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

func filterCommand(out streams) *cobra.Command {
	cmd := &cobra.Command{Use: "filter COMMAND", Short: "packet filter of a running server",
		Long: `Shows and changes the packet filter of a running server, which stands where nftables does not see
the packets. A list is written in a part of the language of nft; docs/firewall.md describes it.`}
	show := showFilterCommand(out)
	cmd.AddCommand(show, loadFilterCommand(out), checkFilterCommand(out),
		filterPrefixCommand(out, "deny", "drop what comes from a prefix",
			`Drops what comes from a prefix or an address, ahead of the list. Of prefixes that are denied and
allowed the longest decides. Answers to what the server itself has begun pass.`),
		filterPrefixCommand(out, "allow", "let in what comes from a prefix",
			`Lets in what comes from a prefix or an address, whatever the list says. Of prefixes that are denied
and allowed the longest decides.`),
		filterPrefixCommand(out, "forget", "end what deny or allow said",
			`Has the list judge what comes from a prefix again, which deny or allow have named.`))
	return cmd
}

// filterSection returns the section of status, which prints what filter show does.
func filterSection(out streams) *cobra.Command {
	cmd := showFilterCommand(out)
	cmd.Use, cmd.Short = "filter", "packet filter of a running server"
	return cmd
}

// filterPage says which of many prefixes, and of each chain's rules, are printed.
type filterPage struct{ offset, limit int }

// filterLines says how many lines of prefixes, and of a chain, are printed by themselves.
const filterLines = 100

// printedOf returns the first of n that is printed, and the one behind the last.
func (p filterPage) printedOf(n int) (from, to int) {
	if from, to = min(p.offset, n), n; p.limit > 0 {
		to = min(n, from+p.limit)
	}
	return from, to
}

// printRest says how many of n are not printed, if some are not.
func (p filterPage) printRest(w io.Writer, n int, of string) {
	switch from, to := p.printedOf(n); {
	case n == to-from:
	case from == to:
		fmt.Fprintf(w, "none of %d %s: --offset is behind the last\n", n, of)
	case to == n:
		fmt.Fprintf(w, "%d to %d of %d %s\n", from+1, to, n, of)
	default:
		fmt.Fprintf(w, "%d to %d of %d %s; --offset %d has more, --limit 0 all\n", from+1, to, n,
			of, to)
	}
}

func showFilterCommand(out streams) *cobra.Command {
	var f lookFlags
	page := filterPage{limit: filterLines}
	cmd := &cobra.Command{Use: "show", Short: "rules, and how many packets each has decided",
		Args: noWords,
		Long: `Prints the prefixes that are denied and allowed, the newest first, then the rules of each chain in
the order in which they count, each with the packets that it has decided since the list was loaded.
Prefixes that were denied for a flood say how often that was so lately, and of how many sources if a
prefix is denied in their place; ahead says what the NIC or packet sockets drop in place of the
filter. Of many prefixes, or rules of a chain, the first 100 are printed, and a line with their
number; --json has all of them.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch changed := cmd.Flags().Changed; {
			case page.limit < 0 || page.offset < 0:
				return usageError{fmt.Errorf("--limit %d, --offset %d: want no less than 0",
					page.limit, page.offset)}
			case f.json && (changed("limit") || changed("offset")):
				return usageError{errors.New("--json prints all: leave out --limit and --offset")}
			}
			var s stack.FilterStatus
			if err := f.ask(cmd.Context(), "/filter", &s); err != nil {
				return err
			}
			return f.printFilter(out.stdout, s, page)
		}}
	f.addTo(cmd, opt("limit", "N", &page.limit, "how many prefixes, and rules of a chain; 0: all"),
		opt("offset", "N", &page.offset, "leave out the first N of each"))
	return cmd
}

func (f *lookFlags) printFilter(w io.Writer, s stack.FilterStatus, page filterPage) error {
	if f.json {
		return json.NewEncoder(w).Encode(s)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	from, to := page.printedOf(len(s.Entries))
	newest := slices.Clone(s.Entries)
	slices.Reverse(newest)
	for _, e := range newest[from:to] {
		until := ""
		if !e.Until.IsZero() {
			until = "until " + e.Until.Local().Format(time.DateTime)
		}
		if e.Automatic {
			until += fmt.Sprintf(", for a flood (%d)", e.Times)
		}
		if e.Sources > 0 {
			until += fmt.Sprintf(" of %d sources", e.Sources)
		}
		fmt.Fprintf(t, "%s\t%d packets\t%s %s\n", e.Verdict, e.Packets, e.Prefix, until)
	}
	page.printRest(t, len(newest), "prefixes, the newest first")
	for _, c := range s.Chains {
		fmt.Fprintf(t, "chain %s\t\t\n", c.Name)
		from, to := page.printedOf(len(c.Rules))
		for _, r := range c.Rules[from:to] {
			fmt.Fprintf(t, "  rule %d\t%d packets\t%s\n", r.Number, r.Packets, r.Text)
		}
		page.printRest(t, len(c.Rules), "rules of chain "+c.Name)
		fmt.Fprintf(t, "  policy\t%d packets\t%s\n", c.Packets, c.Policy)
	}
	if s.Offloaded+s.Waiting > 0 || s.OffloadDropped+s.OffloadRefused > 0 {
		fmt.Fprintf(t, "ahead\t%d packets\t%d rules in the NIC or the sockets, %d without room; "+
			"%d refused\n", s.OffloadDropped, s.Offloaded, s.Waiting, s.OffloadRefused)
	}
	if s.Sources > 0 || s.Denials > 0 {
		fmt.Fprintf(t, "limits\t%d sources\t%d evicted; %d denied for floods, %d spared, "+
			"%d without room\n", s.Sources, s.Evicted, s.Denials, s.Spared, s.Full)
	}
	if len(s.Entries)+len(s.Chains) == 0 {
		fmt.Fprintln(t, "there are no rules: everything passes")
	}
	return t.Flush()
}

func loadFilterCommand(out streams) *cobra.Command {
	var f lookFlags
	cmd := &cobra.Command{Use: "load FILE", Short: "put a list in the place of the one before",
		Args: cobra.ArbitraryArgs,
		Long: `Reads a list from FILE, or from standard input if FILE is -, and puts it in the place of the one
before, whole: each packet is judged by the old one or by the new one. An empty list lets everything
pass. Prefixes that are denied or allowed stay so. On an error nothing changes.`,
		RunE: func(cmd *cobra.Command, words []string) error {
			text, err := readFilterFile(words)
			if err != nil {
				return err
			}
			return f.postFilter(cmd.Context(), out, "/filter/load", bytes.NewReader(text))
		}}
	f.addTo(cmd)
	return cmd
}

// readFilterFile reads the list that the one word names.
func readFilterFile(words []string) ([]byte, error) {
	if len(words) != 1 {
		return nil, usageError{fmt.Errorf("want one FILE with a list, or -")}
	}
	if words[0] == "-" {
		return io.ReadAll(os.Stdin)
	}
	return os.ReadFile(words[0])
}

func checkFilterCommand(out streams) *cobra.Command {
	return &cobra.Command{Use: "check FILE", Short: "say what is wrong with a list",
		Args: cobra.ArbitraryArgs,
		Long: `Reads a list from FILE, or from standard input if FILE is -, and says what is wrong with it, by
line, or how many rules it has. No server need run.`,
		RunE: func(_ *cobra.Command, words []string) error {
			text, err := readFilterFile(words)
			if err != nil {
				return err
			}
			list, err := stack.ParseFilter(string(text))
			if err == nil {
				_, err = stack.NewFilter(string(text))
			}
			if err != nil {
				return fmt.Errorf("%s: %w", words[0], err)
			}
			fmt.Fprintln(out.stdout, list)
			return out.stdout.err()
		}}
}

// filterPrefixCommand makes a command that says something of a prefix.
func filterPrefixCommand(out streams, verdict, short, long string) *cobra.Command {
	var f lookFlags
	var d time.Duration
	cmd := &cobra.Command{Use: verdict + " PREFIX", Short: short, Long: long,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, words []string) error {
			if len(words) != 1 {
				return usageError{fmt.Errorf("want one PREFIX, such as 192.0.2.0/24")}
			}
			p, err := stack.ParseFilterPrefix(words[0])
			if err != nil {
				return usageError{err}
			}
			if d < 0 {
				return usageError{fmt.Errorf("--for %v: want a time such as 10m", d)}
			}
			query := neturl.Values{"prefix": {p.String()}, "verdict": {verdict}}
			if d > 0 {
				query.Set("for", d.String())
			}
			return f.postFilter(cmd.Context(), out, "/filter/prefix?"+query.Encode(), nil)
		}}
	var options []option
	if verdict != "forget" {
		options = append(options, opt("for", "TIME", &d, "for how long, such as 10m (default for "+
			"as long as the server runs)"))
	}
	f.addTo(cmd, options...)
	return cmd
}

// postFilter changes the server's filter, and prints it.
func (f *lookFlags) postFilter(ctx context.Context, out streams, path string,
	body io.Reader) error {
	server, err := f.server(ctx)
	if err != nil {
		return err
	}
	answer, err := server.Stream(ctx, path, body)
	if err != nil {
		return err
	}
	defer answer.Close()
	var s stack.FilterStatus
	if err := json.NewDecoder(answer).Decode(&s); err != nil {
		return fmt.Errorf("decode what process %d says of its filter: %w", server.PID, err)
	}
	return f.printFilter(out.stdout, s, filterPage{limit: filterLines})
}
