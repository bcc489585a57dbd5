package tests

import (
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/house"
)

// most holds the ratchets of the tree: what make house prints may fall below a figure, never rise
// above it. Whoever makes a figure smaller lowers its entry in the same commit.
var most = struct {
	stackMethods, stackFields, stackFiles, packageFiles, knobs int
	causativeHas, productLines, pageWords                      int
	oneWord, definitions                                       float64
}{
	stackMethods: 79,
	stackFields:  29,
	stackFiles:   13,
	packageFiles: 36,
	knobs:        55,
	causativeHas: 0,
	productLines: 114_530,
	pageWords:    2_000,
	oneWord:      23.6,
	definitions:  8.5,
}

// TestHouse keeps the figures of package house from rising.
func TestHouse(t *testing.T) {
	f, err := house.Count("..")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		what string
		now  int
		most int
		cure string
	}{
		{"methods of stack.Stack", f.StackMethods, most.stackMethods, "give them to an owner"},
		{"fields of stack.Stack", f.StackFields, most.stackFields, "give them to an owner"},
		{"files of stack.Stack", f.StackFiles, most.stackFiles, "add to a file that has its owner"},
		{"files of " + f.LargestPackage, f.LargestFiles, most.packageFiles, "split it by owner"},
		{"options of stack.Config", f.Knobs, most.knobs, "choose a default instead"},
		{`comments "X has ... <participle>"`, f.CausativeHas, most.causativeHas, "begin with a verb"},
		{"lines of the product", f.ProductLines, most.productLines, "delete what is not used"},
		{"words of docs/performance.md", f.PerformanceWords, most.pageWords,
			"move what is behind the figures to docs/perf-log"},
	} {
		if tt.now > tt.most {
			t.Errorf("%s: %d, at most %d: %s", tt.what, tt.now, tt.most, tt.cure)
		}
	}
	if s := f.OneWordShare(); s > most.oneWord {
		t.Errorf("one-word unexported functions: %.1f %%, at most %.1f: say what they do to whom",
			s, most.oneWord)
	}
	if s := f.DefinitionShare(); s > most.definitions {
		t.Errorf(`doc comments "X is/are": %.1f %%, at most %.1f: begin with a verb`,
			s, most.definitions)
	}
}
