// Package house counts what makes the tree hard to hold in one head: the size of its largest
// object and package, names that say nothing, comments in a dialect, options, lines. The rules of
// the tree keep each figure from rising; make house prints them.
package house

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const module = "github.com/rdma-netstack/rdma-netstack/"

// Figures holds the counts of one tree. Tests and the folder tests are left out of all of them.
type Figures struct {
	ProductLines   int    // lines of Go
	LargestPackage string // the folder with the most files
	LargestFiles   int    // files in it
	LongestFile    int    // lines

	PerformanceWords int // in the page of performance; 0 if there is none

	StackMethods int // methods of stack.Stack
	StackFields  int // fields of stack.Stack
	StackFiles   int // files that hold a method of stack.Stack
	Knobs        int // exported fields reachable through stack.Config

	Functions    int // unexported functions and methods
	OneWord      int // of these, those named by one lower-case word of at most eight letters
	DocComments  int
	Definitions  int // of these, those that open with "X is" or "X are"
	CausativeHas int // of these, those that open with "X has <something> <participle>"
}

// OneWordShare returns the share of one-word names among unexported functions, in per cent.
func (f *Figures) OneWordShare() float64 { return percent(f.OneWord, f.Functions) }

// DefinitionShare returns the share of doc comments that open with "X is" or "X are", in per cent.
func (f *Figures) DefinitionShare() float64 { return percent(f.Definitions, f.DocComments) }

func percent(part, whole int) float64 {
	return 100 * float64(part) / float64(max(whole, 1))
}

// tree is the parsed product.
type tree struct {
	files    map[string]*ast.File   // by name relative to the root
	packages map[string][]*ast.File // by folder
	Figures
}

// Count parses the product below root, which is the module's folder, and counts it.
func Count(root string) (Figures, error) {
	t := &tree{files: map[string]*ast.File{}, packages: map[string][]*ast.File{}}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if b := d.Name(); b == "testdata" || b == "bin" || rel == "tests" ||
				rel == "examples" || len(b) > 2 && b[0] == '.' {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(rel, ".go") || strings.HasSuffix(rel, "_test.go") {
			return nil
		}
		return t.add(name, rel)
	})
	if err != nil {
		return Figures{}, err
	}
	if len(t.files) == 0 {
		return Figures{}, fmt.Errorf("house: no Go file below %s: run it in the module's folder",
			root)
	}
	for dir, files := range t.packages {
		if n := len(files); n > t.LargestFiles || n == t.LargestFiles && dir < t.LargestPackage {
			t.LargestPackage, t.LargestFiles = dir, n
		}
	}
	t.StackMethods, t.StackFields, t.StackFiles = t.object("stack", "Stack")
	t.Knobs = t.knobs("stack", "Config", map[string]bool{})
	page, err := os.ReadFile(filepath.Join(root, "docs", "performance.md"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Figures{}, err
	}
	t.PerformanceWords = len(bytes.Fields(page))
	return t.Figures, nil
}

// add parses one file and counts its text.
func (t *tree) add(name, rel string) error {
	src, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	f, err := parser.ParseFile(token.NewFileSet(), rel, src, parser.ParseComments)
	if err != nil {
		return err
	}
	lines := bytes.Count(src, []byte("\n"))
	t.ProductLines += lines
	t.LongestFile = max(t.LongestFile, lines)
	t.files[rel] = f
	dir := path.Dir(rel)
	t.packages[dir] = append(t.packages[dir], f)
	ast.Inspect(f, t.text)
	return nil
}

var (
	oneWord    = regexp.MustCompile(`^[a-z]{1,8}$`)
	definition = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]* (is|are) `)
	causative  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]* has (\w+ ){1,6}?` +
		`(\w+ed|come|told|begun|sent|done|made|put|given|taken|known|seen|shown|written|held|read) ?`)
)

// text counts the names and comments of one node.
func (t *tree) text(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.FuncDecl:
		t.doc(n.Doc)
		if !n.Name.IsExported() && n.Name.Name != "main" {
			t.Functions++
			if oneWord.MatchString(n.Name.Name) {
				t.OneWord++
			}
		}
	case *ast.GenDecl:
		if n.Tok != token.IMPORT {
			t.doc(n.Doc)
		}
	case *ast.TypeSpec:
		t.doc(n.Doc)
	case *ast.ValueSpec:
		t.doc(n.Doc)
	case *ast.Field:
		t.doc(n.Doc)
	}
	return true
}

func (t *tree) doc(g *ast.CommentGroup) {
	if g == nil {
		return
	}
	text := strings.Join(strings.Fields(g.Text()), " ")
	t.DocComments++
	if definition.MatchString(text) {
		t.Definitions++
	}
	if first, _, _ := strings.Cut(text, ". "); causative.MatchString(first) {
		t.CausativeHas++
	}
}

// object counts the methods and fields of a type, and the files that hold methods of it.
func (t *tree) object(dir, name string) (methods, fields, files int) {
	for rel, f := range t.files {
		if path.Dir(rel) != dir {
			continue
		}
		n := 0
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil && receiver(fn) == name {
				n++
			}
		}
		methods += n
		if n > 0 {
			files++
		}
	}
	if s := t.structOf(dir, name); s != nil {
		for _, f := range s.Fields.List {
			fields += max(1, len(f.Names))
		}
	}
	return methods, fields, files
}

func receiver(fn *ast.FuncDecl) string {
	x := fn.Recv.List[0].Type
	if s, ok := x.(*ast.StarExpr); ok {
		x = s.X
	}
	id, _ := x.(*ast.Ident)
	if id == nil {
		return ""
	}
	return id.Name
}

// structOf finds a struct of a package; nil if the name is none.
func (t *tree) structOf(dir, name string) *ast.StructType {
	for _, f := range t.packages[dir] {
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, s := range g.Specs {
				if ts, ok := s.(*ast.TypeSpec); ok && ts.Name.Name == name {
					st, _ := ts.Type.(*ast.StructType)
					return st
				}
			}
		}
	}
	return nil
}

// knobs counts the exported fields of a struct. A field whose own type is a struct of options of
// the module counts for the fields of that.
func (t *tree) knobs(dir, name string, seen map[string]bool) (n int) {
	s := t.structOf(dir, name)
	if s == nil || seen[dir+"."+name] {
		return 0
	}
	seen[dir+"."+name] = true
	for _, f := range s.Fields.List {
		fieldDir, fieldType := t.typeOf(dir, f.Type)
		options := slices.ContainsFunc([]string{"Config", "Options", "NIC", "Model", "Rings",
			"Steering", "Tuning"}, func(end string) bool {
			return strings.HasSuffix(fieldType, end)
		})
		names := f.Names
		if len(names) == 0 { // embedded
			names = []*ast.Ident{{Name: fieldType}}
		}
		for _, id := range names {
			if !id.IsExported() {
				continue
			}
			if below := 0; options {
				if below = t.knobs(fieldDir, fieldType, seen); below > 0 {
					n += below
					continue
				}
			}
			n++
		}
	}
	return n
}

// typeOf names the folder and the type of a field's expression; empty if the type is not of the
// module.
func (t *tree) typeOf(dir string, x ast.Expr) (string, string) {
	switch x := x.(type) {
	case *ast.StarExpr:
		return t.typeOf(dir, x.X)
	case *ast.Ident:
		return dir, x.Name
	case *ast.SelectorExpr:
		pkg, _ := x.X.(*ast.Ident)
		if pkg == nil {
			return "", ""
		}
		for _, f := range t.packages[dir] {
			for _, im := range f.Imports {
				p := strings.Trim(im.Path.Value, `"`)
				if own, ok := strings.CutPrefix(p, module); ok && path.Base(own) == pkg.Name {
					return own, x.Sel.Name
				}
			}
		}
	}
	return "", ""
}
