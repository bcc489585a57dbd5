// Command run prints the figures of the tree below the current folder, one a line, and those of the
// commit subjects since the commit named by its argument.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"unicode/utf8"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/house"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	f, err := house.Count(".")
	if err != nil {
		return err
	}
	for _, row := range []struct {
		what string
		now  any
		goal string
	}{
		{"methods of stack.Stack", f.StackMethods, "95"},
		{"fields of stack.Stack", f.StackFields, "30"},
		{"files with methods of stack.Stack", f.StackFiles, "18"},
		{"files in the largest package, " + f.LargestPackage, f.LargestFiles, "36"},
		{"lines of the longest file", f.LongestFile, "1500"},
		{"options reachable through stack.Config", f.Knobs, "55"},
		{"one-word unexported functions, %", fmt.Sprintf("%.1f", f.OneWordShare()), "25"},
		{`doc comments "X is/are ...", %`, fmt.Sprintf("%.1f", f.DefinitionShare()), "15"},
		{`doc comments "X has ... <participle>"`, f.CausativeHas, "0"},
		{"lines of the product", f.ProductLines, "72000"},
		{"words of docs/performance.md", f.PerformanceWords, "2000"},
	} {
		fmt.Printf("%-45s %7v   goal %s\n", row.what, row.now, row.goal)
	}
	if len(args) == 1 {
		return subjects(args[0])
	}
	return nil
}

// subjects prints how long the subjects of the commits after base are.
func subjects(base string) error {
	out, err := exec.Command("git", "log", "--format=%s", base+"..HEAD").Output()
	if err != nil {
		return fmt.Errorf("git log %s..HEAD: %w: name a commit of this history", base, err)
	}
	n, letters, long := 0, 0, 0
	for s := range strings.Lines(string(out)) {
		l := utf8.RuneCountInString(strings.TrimSpace(s))
		n, letters = n+1, letters+l
		if l > 72 {
			long++
		}
	}
	fmt.Printf("%-45s %7d   goal 72\n", "letters of a commit subject, mean", letters/max(n, 1))
	fmt.Printf("%-45s %7d   goal 0, of %d\n", "commit subjects over 72 letters", long, n)
	return nil
}
