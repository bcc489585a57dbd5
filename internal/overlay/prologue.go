package overlay

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/printer"
	"go/token"
	"slices"
	"strings"
)

// prologue holds what is inserted at the start of a function. In code, $0 stands for the name of
// the receiver and $1, $2 ... for those of the parameters.
type prologue struct {
	signature string // types of parameters and results, such as "([]byte) (int,error)"
	code      string
}

// sourceFile collects the insertions into one file of a package that gets prologues.
type sourceFile struct {
	name string // for messages
	text []byte
	fset *token.FileSet
	ast  *ast.File
	// insertions are not made until changedText is called.
	insertions []insertion
}

type insertion struct {
	offset int
	text   string
}

func parseSource(name string, text []byte) (*sourceFile, error) {
	f := &sourceFile{name: name, text: text, fset: token.NewFileSet()}
	var err error
	f.ast, err = parser.ParseFile(f.fset, name, text, parser.ParseComments)
	return f, err
}

// insertAt inserts text in front of the token at pos.
func (f *sourceFile) insertAt(pos token.Pos, text string) {
	f.insertions = append(f.insertions, insertion{f.fset.Position(pos).Offset, text})
}

// insertPrologue inserts p at the start of d, or says why it does not fit.
func (f *sourceFile) insertPrologue(d *ast.FuncDecl, p prologue) error {
	id := functionName(d)
	signature, names := f.signatureOf(d)
	if signature != p.signature {
		return fmt.Errorf("%s: %s is %s, not %s", f.name, id, signature, p.signature)
	}
	if d.Body == nil {
		return fmt.Errorf("%s: %s has no body", f.name, id)
	}
	code := p.code
	for i := len(names) - 1; i >= 0; i-- {
		place := fmt.Sprint("$", i)
		if !strings.Contains(code, place) {
			continue
		}
		if names[i] == "" || names[i] == "_" {
			return fmt.Errorf("%s: parameter %d of %s has no name", f.name, i, id)
		}
		code = strings.ReplaceAll(code, place, names[i])
	}
	f.insertAt(d.Body.Lbrace+1, "\n"+code+"\n")
	return nil
}

// changedText returns the text with all insertions, or nil if there are none.
func (f *sourceFile) changedText() ([]byte, error) {
	if len(f.insertions) == 0 {
		return nil, nil
	}
	slices.SortFunc(f.insertions, func(a, b insertion) int { return b.offset - a.offset })
	text := f.text
	for _, i := range f.insertions {
		text = slices.Concat(text[:i.offset], []byte(i.text), text[i.offset:])
	}
	text, err := format.Source(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.name, err)
	}
	return text, nil
}

// signatureOf returns the types of a function's parameters and results, and the names of its
// receiver and parameters, which are "" where it has none.
func (f *sourceFile) signatureOf(d *ast.FuncDecl) (string, []string) {
	names := []string{""}
	if d.Recv != nil && len(d.Recv.List[0].Names) > 0 {
		names[0] = d.Recv.List[0].Names[0].Name
	}
	list := func(fields *ast.FieldList, name func(string)) string {
		if fields == nil {
			return "()"
		}
		var types []string
		for _, field := range fields.List {
			var b bytes.Buffer
			printer.Fprint(&b, f.fset, field.Type)
			for i := range max(len(field.Names), 1) {
				types = append(types, b.String())
				if len(field.Names) > 0 {
					name(field.Names[i].Name)
				} else {
					name("")
				}
			}
		}
		return "(" + strings.Join(types, ",") + ")"
	}
	in := list(d.Type.Params, func(s string) { names = append(names, s) })
	return in + " " + list(d.Type.Results, func(string) {}), names
}

// functionName returns the name of a function, or Type.Name of a method.
func functionName(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return d.Name.Name
	}
	t := d.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.Name + "." + d.Name.Name
		default:
			return "?." + d.Name.Name
		}
	}
}
