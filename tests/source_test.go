package tests

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Lines a file and a function may have without a reason in long.
const (
	maxFileLines     = 1500
	maxFunctionLines = 120
)

// long has the reason of each file and function above the limits; functions are
// named file:function. An entry that is not needed any more is a failure.
var long = map[string]string{}

// file is one source file; names are relative to the module, with slashes.
type file struct {
	name string
	src  []byte
	fset *token.FileSet
	ast  *ast.File // empty of assembly
}

func (f *file) dir() string  { return path.Dir(f.name) }
func (f *file) isGo() bool   { return strings.HasSuffix(f.name, ".go") }
func (f *file) isTest() bool { return strings.HasSuffix(f.name, "_test.go") }

// isLibrary reports whether others import the package, so that it may neither
// print nor exit.
func (f *file) isLibrary() bool {
	return !f.isTest() && f.ast.Name != nil && f.ast.Name.Name != "main" &&
		!strings.HasPrefix(f.name, "cmd/") && !strings.HasPrefix(f.name, "tests/")
}

// parse makes a file of a name and its text.
func parse(name string, src []byte) (*file, error) {
	f := &file{name: name, src: src, fset: token.NewFileSet(), ast: &ast.File{}}
	if !f.isGo() {
		return f, nil
	}
	var err error
	f.ast, err = parser.ParseFile(f.fset, name, src, parser.ParseComments)
	return f, err
}

// TestTree applies every rule to every source file of the module.
func TestTree(t *testing.T) {
	files := sources(t)
	for _, tt := range []struct {
		name string
		rule func(*file) []string
	}{
		{"layers", checkImports},
		{"assembly", checkAssembly},
		{"gofmt", checkFormat},
		{"no init", checkInit},
		{"skips", checkSkips},
		{"quiet libraries", checkQuiet},
		{"sizes", checkSizes},
		{"columns", checkColumns},
		{"doc names", checkDocNames},
		{"one clock", checkClock},
		{"pages", checkPages},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, f := range files {
				for _, wrong := range tt.rule(f) {
					t.Errorf("%s: %s", f.name, wrong)
				}
			}
		})
	}
	t.Run("reasons", func(t *testing.T) { checkReasons(t, files, long) })
}

// sources returns the Go and assembly files of the module.
func sources(t *testing.T) (files []*file) {
	t.Helper()
	err := filepath.WalkDir("..", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if b := d.Name(); b == "testdata" || b == "bin" ||
				strings.HasPrefix(b, ".") && b != ".." {
				return filepath.SkipDir
			}
			return nil
		}
		if ext := filepath.Ext(name); ext != ".go" && ext != ".s" {
			return nil
		}
		src, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		f, err := parse(filepath.ToSlash(strings.TrimPrefix(name, ".."+string(filepath.Separator))),
			src)
		files = append(files, f)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 20 {
		t.Fatalf("found only %d files", len(files))
	}
	return files
}

func checkAssembly(f *file) []string {
	if !f.isGo() && f.dir() != path.Dir(unsafeFiles[0]) {
		return []string{"assembly outside " + path.Dir(unsafeFiles[0])}
	}
	return nil
}

func checkFormat(f *file) []string {
	if !f.isGo() {
		return nil
	}
	if out, err := format.Source(f.src); err != nil || !bytes.Equal(out, f.src) {
		return []string{"not gofmt's format"}
	}
	return nil
}

func checkInit(f *file) (wrong []string) {
	for _, d := range f.ast.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
			wrong = append(wrong, "has an init function")
		}
	}
	return wrong
}

// checkSkips wants every skip to go through tests/lib/need, which knows the reason.
func checkSkips(f *file) []string {
	if f.dir() == "tests/lib/need" {
		return nil
	}
	return calls(f, func(recv, name string) bool {
		return f.isTest() && recv != "need" &&
			(name == "Skip" || name == "Skipf" || name == "SkipNow")
	})
}

// checkQuiet wants libraries to return errors instead of printing and exiting.
func checkQuiet(f *file) []string {
	return calls(f, func(recv, name string) bool {
		return f.isLibrary() && (recv == "os" && name == "Exit" ||
			recv == "fmt" && strings.HasPrefix(name, "Print") ||
			recv == "log" && (strings.HasPrefix(name, "Print") ||
				strings.HasPrefix(name, "Fatal") || strings.HasPrefix(name, "Panic")))
	})
}

// calls lists the calls x.name of a file that are bad.
func calls(f *file, bad func(recv, name string) bool) (wrong []string) {
	ast.Inspect(f.ast, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if sel, ok := call.Fun.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && bad(x.Name, sel.Sel.Name) {
				wrong = append(wrong, fmt.Sprintf("line %d calls %s.%s",
					f.fset.Position(call.Pos()).Line, x.Name, sel.Sel.Name))
			}
		}
		return true
	})
	return wrong
}

// tooLong maps what is above the limits in a file to its lines. Functions of
// tests are not counted: their tables are as long as what they list.
func tooLong(f *file) map[string]int {
	out := map[string]int{}
	if n := bytes.Count(f.src, []byte("\n")); n > maxFileLines {
		out[f.name] = n
	}
	for _, d := range f.ast.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && !f.isTest() {
			n := f.fset.Position(fn.End()).Line - f.fset.Position(fn.Pos()).Line + 1
			if n > maxFunctionLines {
				out[f.name+":"+fn.Name.Name] = n
			}
		}
	}
	return out
}

func checkSizes(f *file) (wrong []string) {
	for what, n := range tooLong(f) {
		if long[what] == "" {
			wrong = append(wrong, fmt.Sprintf("%s has %d lines and no reason", what, n))
		}
	}
	return wrong
}

// checkReasons fails for entries that nothing needs.
func checkReasons(t testing.TB, files []*file, reasons map[string]string) {
	t.Helper()
	needed := map[string]bool{}
	for _, f := range files {
		for what := range tooLong(f) {
			needed[what] = true
		}
	}
	for what := range reasons {
		if !needed[what] {
			t.Errorf("%s needs no reason to be long any more", what)
		}
	}
}

// fixedPage matches what presumes that the pages of the machine that tests run on are of 4 KiB.
var fixedPage = regexp.MustCompile(
	`Mmap\(.*\b(4096|8192)\b|&\^ ?(4095|0xfff)\b|Memlock:? =? ?.*\b4096\b`)

// checkPages: tests of what maps or locks memory ask for the size of a page, or inject one. make
// test-pages runs them as with pages of 16 and 64 KiB.
func checkPages(f *file) (wrong []string) {
	if !f.isTest() || !strings.HasPrefix(f.name, "dv/") && !strings.HasPrefix(f.name, "simnic/") {
		return nil
	}
	for i, line := range strings.Split(string(f.src), "\n") {
		if fixedPage.MatchString(line) {
			wrong = append(wrong, fmt.Sprintf("line %d: pages are of os.Getpagesize()", i+1))
		}
	}
	return wrong
}
