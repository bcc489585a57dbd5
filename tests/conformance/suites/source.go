package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
)

// context is the build context of all packages.
func (w *workshop) context() *build.Context {
	c := build.Default
	c.GOROOT, c.CgoEnabled = w.goroot, false
	return &c
}

// standard finds a package of GOROOT.
func (w *workshop) standard(path string) (*build.Package, error) {
	return w.context().ImportDir(filepath.Join(w.goroot, "src", path), 0)
}

// kind is the kind of object that a name of a package denotes.
type kind string

const (
	isFunc  kind = "func"
	isType  kind = "type"
	isConst kind = "const"
	isVar   kind = "var"
)

// names maps the names that the files of a package declare to their kinds. Generic functions and
// types are left out: an assignment cannot forward them.
func names(dir string, files []string) (map[string]kind, error) {
	out := map[string]kind{}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, name), nil,
			parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, d := range f.Decls {
			declared(d, out)
		}
	}
	return out, nil
}

func declared(d ast.Decl, out map[string]kind) {
	if fn, ok := d.(*ast.FuncDecl); ok {
		if fn.Recv == nil && fn.Type.TypeParams == nil &&
			fn.Name.Name != "init" && fn.Name.Name != "_" {
			out[fn.Name.Name] = isFunc
		}
		return
	}
	g := d.(*ast.GenDecl)
	for _, s := range g.Specs {
		switch s := s.(type) {
		case *ast.TypeSpec:
			if s.TypeParams == nil {
				out[s.Name.Name] = isType
			}
		case *ast.ValueSpec:
			for _, n := range s.Names {
				if n.Name != "_" {
					out[n.Name] = kind(g.Tok.String())
				}
			}
		}
	}
}

// handOn writes declarations by which a package gets names of another. own and theirs map a name to
// its names in the two packages.
func handOn(b *bytes.Buffer, from string, list map[string]kind, own, theirs func(string) string) {
	var sorted []string
	for n := range list {
		sorted = append(sorted, n)
	}
	sort.Strings(sorted)
	for _, n := range sorted {
		what := list[n]
		if what == isFunc {
			what = isVar
		}
		other := theirs(n)
		if from != "" {
			other = from + "." + other
		}
		fmt.Fprintf(b, "%s %s = %s\n", what, own(n), other)
	}
}

func same(name string) string     { return name }
func exported(name string) string { return "Suite_" + name }

// reexport makes a package of GOROOT that re-exports an internal one, and returns its path.
func (w *workshop) reexport(path string) (string, error) {
	p, err := w.standard(path)
	if err != nil {
		return "", err
	}
	all, err := names(p.Dir, p.GoFiles)
	if err != nil {
		return "", err
	}
	for n := range all {
		if !ast.IsExported(n) {
			delete(all, n)
		}
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "package %s\n\nimport was %q\n\n", p.Name, path)
	handOn(&b, "was", all, same, same)
	if len(all) == 0 {
		b.WriteString("var _ = was.X\n")
	}
	// only packages below the parent may import it
	parent, rest, _ := strings.Cut("/"+path, "/internal/")
	open := strings.TrimPrefix(parent+"/suites/"+strings.ReplaceAll(rest, "/", "-"), "/")
	return open, w.replace(open+"/reexport.go", b.Bytes())
}

// takeTests copies tests from GOROOT into a package of the module, and changes imports of internal
// packages to their re-exports. edit may change a file's text.
func (w *workshop) takeTests(from string, files []string, to string,
	edit func(name, text string) (string, error)) error {
	for _, name := range files {
		text, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return err
		}
		s, err := w.openImports(name, string(text))
		if err == nil && edit != nil {
			s, err = edit(name, s)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := w.write(filepath.Join(to, name), []byte(s)); err != nil {
			return err
		}
	}
	return nil
}

// openImports changes a file's imports of internal packages to re-exports.
func (w *workshop) openImports(name, text string) (string, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, text, parser.ImportsOnly)
	if err != nil {
		return "", err
	}
	for i := len(f.Imports) - 1; i >= 0; i-- {
		imp := f.Imports[i]
		path, err := strconv.Unquote(imp.Path.Value)
		if err != nil {
			return "", err
		}
		if !strings.Contains("/"+path+"/", "/internal/") {
			continue
		}
		open, err := w.reexport(path)
		if err != nil {
			return "", err
		}
		at, end := fset.Position(imp.Path.Pos()).Offset, fset.Position(imp.Path.End()).Offset
		text = text[:at] + strconv.Quote(open) + text[end:]
	}
	return text, nil
}

// insert puts text after a line that a file must have exactly once.
func insert(text, line, more string) (string, error) {
	if n := strings.Count(text, line+"\n"); n != 1 {
		return "", fmt.Errorf("%d lines %q, want one: this Go is not one that suites knows", n,
			line)
	}
	return strings.Replace(text, line+"\n", line+"\n"+more+"\n", 1), nil
}
