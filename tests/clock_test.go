package tests

import (
	"fmt"
	"go/ast"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// onOneClock are the packages (patterns) that go by the clock and the random numbers of their
// Config, so that a simulation decides both. Their tests need not.
var onOneClock = []string{
	"apps/dnsd", "apps/httpd", "apps/iperf3d",
	"dv", "dv/uverbs", "dv/internal/...", "dv/mlx5",
	"simnic", "simnic/frame", "simnic/kernel", "tests/vm/pcie", "simnic/wire",
	"link/capture", "link/failover", "link/packet", "link/uplink", "link/rdma",
	"link/rdma/internal/hdr", "link/rdma/internal/tcpfix", "stack",
}

// ownClock has the exceptions, file:name, each with its reason. An entry that is not needed any
// more is a failure.
var ownClock = map[string]string{}

// systemClock are what may not be used of a package; a name that begins with ! is the only that
// may be, and others that begin so.
var systemClock = map[string][]string{
	"time": {"Now", "Since", "Until", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick",
		"Sleep"},
	"context":   {"WithTimeout", "WithTimeoutCause", "WithDeadline", "WithDeadlineCause"},
	"math/rand": {"!New", "!NewSource", "!Rand", "!Source"},
	"math/rand/v2": {"!New", "!NewPCG", "!NewChaCha8", "!Rand", "!Source", "!PCG",
		"!ChaCha8"},
	"crypto/rand":  {"!"},
	"hash/maphash": {"!"},
}

// checkClock wants packages on one clock to ask no other.
func checkClock(f *file) (wrong []string) {
	for _, name := range systemUses(f) {
		if _, excepted := ownClock[f.name+":"+name]; !excepted {
			wrong = append(wrong, fmt.Sprintf("uses %s; use that of the package's Config "+
				"(packages clock and internal/random)", name))
		}
	}
	return wrong
}

// systemUses are the uses of the system's clock and random numbers in a file that must not.
func systemUses(f *file) (names []string) {
	on := func(entry string) bool { return covers(entry, f.dir()) }
	if f.isTest() || !f.isGo() || !slices.ContainsFunc(onOneClock, on) {
		return nil
	}
	local := map[string]string{} // package by its name in the file
	for _, imp := range f.ast.Imports {
		p, err := strconv.Unquote(imp.Path.Value)
		if _, listed := systemClock[p]; err != nil || !listed {
			continue
		}
		name := strings.TrimSuffix(p, "/v2")
		name = path.Base(name)
		if imp.Name != nil {
			name = imp.Name.Name
		}
		local[name] = p
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := s.X.(*ast.Ident); ok && x.Obj == nil && forbidden(local[x.Name], s.Sel.Name) {
			names = append(names, local[x.Name]+"."+s.Sel.Name)
		}
		return true
	})
	return names
}

// forbidden reports whether a package that goes by its Config may not use pkg.name.
func forbidden(pkg, name string) bool {
	list := systemClock[pkg]
	if len(list) > 0 && strings.HasPrefix(list[0], "!") {
		return !slices.Contains(list, "!"+name)
	}
	return slices.Contains(list, name)
}

// TestOwnClock: each exception is still needed.
func TestOwnClock(t *testing.T) {
	used := map[string]bool{}
	for _, f := range sources(t) {
		for _, name := range systemUses(f) {
			used[f.name+":"+name] = true
		}
	}
	for entry := range ownClock {
		if !used[entry] {
			t.Errorf("%s is not used any more: remove the exception", entry)
		}
	}
}

// TestClockRule: the rule finds what it forbids.
func TestClockRule(t *testing.T) {
	for _, tt := range []struct {
		name, imports, body string
		want                []string
	}{
		{"now", `"time"`, "time.Now()", []string{"time.Now"}},
		{"as a value", `"time"`, "f := time.Sleep; f(1)", []string{"time.Sleep"}},
		{"another name", `t "time"`, "t.NewTicker(1)", []string{"time.NewTicker"}},
		{"a deadline", `"context"`, "context.WithTimeout(nil, 1)", []string{"context.WithTimeout"}},
		{"global numbers", `"math/rand/v2"`, "rand.IntN(3)", []string{"math/rand/v2.IntN"}},
		{"system's numbers", `"crypto/rand"`, "rand.Read(nil)", []string{"crypto/rand.Read"}},
		{"a system's key", `"hash/maphash"`, "maphash.MakeSeed()",
			[]string{"hash/maphash.MakeSeed"}},
		{"a generator", `"math/rand/v2"`, "rand.New(rand.NewPCG(1, 2)).IntN(3)", nil},
		{"a span", `"time"`, "time.Duration(3).String()", nil},
		{"another package", `time "example.org/time"`, "time.Now()", nil},
		{"a variable", `"time"`, "time := clock{}; time.Now()", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			src := "package stack\n\nimport " + tt.imports + "\n\nfunc f() { " + tt.body + " }\n"
			for name, want := range map[string][]string{"stack/x.go": tt.want,
				"stack/x_test.go": nil, "cmd/x.go": nil} {
				f, err := parse(name, []byte(src))
				if err != nil {
					t.Fatal(err)
				}
				if got := systemUses(f); !slices.Equal(got, want) {
					t.Errorf("%s: found %q, want %q", name, got, want)
				}
			}
		})
	}
}
