package tests

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxColumns is the longest line, with a tab counted as tabColumns.
const maxColumns, tabColumns = 100, 4

// checkColumns wants lines of at most maxColumns. Lines of raw strings, which
// are data (golden bytes, scripts, templates), and lines with a URL may be
// longer. A struct tag is a raw string, but text.
func checkColumns(f *file) (wrong []string) {
	var data []bool // by line, from 1: part of a raw string
	for i, line := range strings.Split(string(f.src), "\n") {
		n := utf8.RuneCountInString(line) + (tabColumns-1)*strings.Count(line, "\t")
		if n <= maxColumns || !f.isGo() || strings.Contains(line, "://") {
			continue
		}
		if data == nil {
			data = rawLines(f)
		}
		if !data[i+1] {
			wrong = append(wrong, fmt.Sprintf("line %d has %d columns", i+1, n))
		}
	}
	return wrong
}

// rawLines says of each line, from 1, whether a raw string other than a struct
// tag is on it.
func rawLines(f *file) []bool {
	lines := make([]bool, strings.Count(string(f.src), "\n")+2)
	tags := map[*ast.BasicLit]bool{}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			tags[n.Tag] = true // visited before its tag is
		case *ast.BasicLit:
			if n.Kind == token.STRING && n.Value[0] == '`' && !tags[n] {
				first := f.fset.Position(n.Pos()).Line
				last := first + strings.Count(n.Value, "\n")
				for i := first; i <= last; i++ {
					lines[i] = true
				}
			}
		}
		return true
	})
	return lines
}

// compound matches an identifier of several words.
var compound = regexp.MustCompile(`^[A-Za-z0-9]*[a-z0-9][A-Z][A-Za-z0-9]*$`)

// checkDocNames wants a doc comment that begins with an identifier to begin with
// the one that it documents, or with another of the same group: a comment that
// was left behind by a change of name misleads.
func checkDocNames(f *file) (wrong []string) {
	check := func(doc *ast.CommentGroup, names []string) {
		if doc == nil {
			return
		}
		first, _, _ := strings.Cut(doc.Text(), " ")
		if compound.MatchString(first) && !slices.Contains(names, first) {
			wrong = append(wrong, fmt.Sprintf("line %d documents %s, but %s is declared",
				f.fset.Position(doc.Pos()).Line, first, strings.Join(names, ", ")))
		}
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			check(n.Doc, []string{n.Name.Name})
		case *ast.GenDecl:
			var all []string
			for _, s := range n.Specs {
				all = append(all, specNames(s)...)
			}
			if !n.Lparen.IsValid() { // the doc of a group may begin with any word
				check(n.Doc, all)
			}
			for _, s := range n.Specs {
				check(specDoc(s), all)
			}
		case *ast.FieldList:
			var all []string
			for _, field := range n.List {
				for _, name := range field.Names {
					all = append(all, name.Name)
				}
			}
			for _, field := range n.List {
				if len(field.Names) > 0 { // an embedded field has no name of its own
					check(field.Doc, all)
				}
			}
		}
		return true
	})
	return wrong
}

// specNames lists what a declaration declares.
func specNames(s ast.Spec) (names []string) {
	switch s := s.(type) {
	case *ast.TypeSpec:
		return []string{s.Name.Name}
	case *ast.ValueSpec:
		for _, n := range s.Names {
			names = append(names, n.Name)
		}
	}
	return names
}

// specDoc is the comment above one declaration of a group.
func specDoc(s ast.Spec) *ast.CommentGroup {
	switch s := s.(type) {
	case *ast.TypeSpec:
		return s.Doc
	case *ast.ValueSpec:
		return s.Doc
	}
	return nil
}
