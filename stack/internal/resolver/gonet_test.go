//go:build !gonet

package resolver

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// goFiles are the files of package net whose tests are about what this package does.
var goFiles = []string{"dnsclient_unix_test.go", "dnsconfig_unix_test.go", "dnsname_test.go",
	"hosts_test.go", "nss_test.go", "conf_test.go"}

const (
	byNet     = "package net's own code does this for Stack.Resolver; dials have no use for it"
	byCgo     = "half of it is about the choice between cgo and Go; TestOrder has the Go half"
	noFile    = "a configured resolv.conf that is missing is refused; TestNoResolvConf"
	nameOfNet = "it is about variables of package net"
)

// notOurs are the tests of goFiles that are left out.
var notOurs = map[string]string{
	"TestStrictErrorsLookupIP":                          byNet,
	"TestStrictErrorsLookupTXT":                         byNet,
	"TestLookupStaticAddr":                              byNet,
	"TestHostCacheModification":                         byNet,
	"TestLookupStaticHostAliases":                       byNet,
	"TestGoLookupIPCNAMEOrderHostsAliasesFilesOnlyMode": byNet,
	"TestGoLookupIPCNAMEOrderHostsAliasesFilesDNSMode":  byNet,
	"TestGoLookupIPCNAMEOrderHostsAliasesDNSFilesMode":  byNet,
	"TestConfHostLookupOrder":                           byCgo,
	"TestAddrLookupOrder":                               byCgo,
	"TestParseNSSConf":                                  byCgo,
	"TestSystemConf":                                    nameOfNet,
	"TestDNSReadMissingFile":                            noFile,
}

// goEdits are made to the text of the tests.
var goEdits = []struct{ what, by string }{
	{`\bResolver\b`, "Resolver_"},
	{`"testdata/`, `"` + "TESTDATA/"},
	{`resolverConfig: &resolvConf\b`, "resolverConfig: &systemConfig"},
	// fields that only cgo and OpenBSD have a use for, or that ours keeps elsewhere
	{`(?m)^\s*(unknownOpt: .*|lookup: *\[.*)$`, ""},
	{`(?s)if conf\.err != nil \{.*?\}`, ""},
	{`(?m)^\s*(conf\.mtime|resolvConf\.err) = .*$`, ""},
	// StrictErrors
	{`(?m)^\s*\{true, &DNSError\{.*$`, ""},
}

// TestOfPackageNet runs the tests of package net of the toolchain in use against this package. They
// are taken from GOROOT; gonet_names_test.go has the names that they use.
func TestOfPackageNet(t *testing.T) {
	need.Tool(t, "go")
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(strings.TrimSpace(string(root)), "src", "net")
	tests := parseGoTests(t, dir)
	wanted := tests.wanted(t)
	readSources(t)
	overlay := map[string]string{}
	for name, text := range tests.reduced(t, wanted) {
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, text, 0o644); err != nil {
			t.Fatal(err)
		}
		here, err := filepath.Abs("gonet_" + name)
		if err != nil {
			t.Fatal(err)
		}
		overlay[here] = file
	}
	list, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "overlay.json")
	if err := os.WriteFile(file, list, 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "test", "-vet=off", "-overlay", file, "-tags", "gonet", "-count=1",
		"-v", "-run", "^("+strings.Join(wanted, "|")+")$", ".")
	out, err := cmd.CombinedOutput()
	for _, name := range wanted {
		if !bytes.Contains(out, []byte("--- PASS: "+name+" (")) {
			t.Errorf("%s of package net did not pass", name)
		}
	}
	if err != nil || t.Failed() {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%d tests of package net pass", len(wanted))
}

// readSources tells the cache of test results what the result depends on.
func readSources(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if _, err := os.ReadFile(name); err != nil {
			t.Fatal(err)
		}
	}
}

// goTests are the top-level declarations of the test files.
type goTests struct {
	fset  *token.FileSet
	files map[string]*ast.File
	decls map[string]ast.Decl // by each name that one declares; methods are with their type
	all   []string            // names of tests
}

func parseGoTests(t *testing.T, dir string) *goTests {
	t.Helper()
	g := &goTests{fset: token.NewFileSet(), files: map[string]*ast.File{},
		decls: map[string]ast.Decl{}}
	for _, name := range goFiles {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range goEdits {
			text = regexp.MustCompile(e.what).ReplaceAll(text, []byte(e.by))
		}
		data := filepath.Join(dir, "testdata") + "/"
		text = bytes.ReplaceAll(text, []byte("TESTDATA/"), []byte(data))
		f, err := parser.ParseFile(g.fset, name, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		g.files[name] = f
		for _, d := range f.Decls {
			for _, n := range declared(d) {
				g.decls[n] = d
			}
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil &&
				strings.HasPrefix(fn.Name.Name, "Test") {
				g.all = append(g.all, fn.Name.Name)
			}
		}
	}
	return g
}

// declared returns the names of a declaration; a method's is "Type.Method".
func declared(d ast.Decl) (names []string) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			return []string{d.Name.Name}
		}
		typ := d.Recv.List[0].Type
		if p, ok := typ.(*ast.StarExpr); ok {
			typ = p.X
		}
		return []string{typ.(*ast.Ident).Name + "." + d.Name.Name}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.ValueSpec:
				for _, n := range s.Names {
					names = append(names, n.Name)
				}
			case *ast.TypeSpec:
				names = append(names, s.Name.Name)
			}
		}
	}
	return names
}

// wanted returns the tests to run. Every test is among them or has its reason.
func (g *goTests) wanted(t *testing.T) (names []string) {
	t.Helper()
	left := map[string]bool{}
	for _, name := range g.all {
		if _, out := notOurs[name]; !out {
			names = append(names, name)
		}
		left[name] = true
	}
	for name := range notOurs {
		if !left[name] {
			t.Errorf("package net has no %s: take it out of notOurs", name)
		}
	}
	return names
}

// reduced returns the files with the declarations that the wanted tests need. What our file of
// names declares is not needed.
func (g *goTests) reduced(t *testing.T, wanted []string) map[string][]byte {
	t.Helper()
	names, err := parser.ParseFile(g.fset, "gonet_names_test.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ours := map[string]bool{}
	for _, d := range names.Decls {
		for _, n := range declared(d) {
			ours[n] = true
		}
	}
	keep := map[ast.Decl]bool{}
	for todo := append([]string{"init"}, wanted...); len(todo) > 0; {
		name := todo[0]
		todo = todo[1:]
		d := g.decls[name]
		if d == nil || keep[d] || ours[name] {
			continue
		}
		keep[d] = true
		ast.Inspect(d, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				todo = append(todo, id.Name)
			}
			return true
		})
		for method := range g.decls { // of a type that is kept
			if of, _, ok := strings.Cut(method, "."); ok && of == name {
				todo = append(todo, method)
			}
		}
	}
	out := map[string][]byte{}
	for name, f := range g.files {
		used := map[string]bool{}
		decls := []ast.Decl{}
		for _, d := range f.Decls {
			if keep[d] {
				decls = append(decls, d)
				ast.Inspect(d, func(n ast.Node) bool {
					if s, ok := n.(*ast.SelectorExpr); ok {
						if id, ok := s.X.(*ast.Ident); ok {
							used[id.Name] = true
						}
					}
					return true
				})
			}
		}
		if len(decls) == 0 {
			continue
		}
		imports := &ast.GenDecl{Tok: token.IMPORT, Lparen: 1}
		for _, i := range f.Imports {
			path, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if used[path[strings.LastIndex(path, "/")+1:]] {
				imports.Specs = append(imports.Specs, i)
			}
		}
		f.Name.Name, f.Comments = "resolver", nil
		f.Decls = append([]ast.Decl{imports}, decls...)
		var b bytes.Buffer
		if err := format.Node(&b, g.fset, f); err != nil {
			t.Fatal(err)
		}
		out[name] = b.Bytes()
	}
	return out
}
