package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// rounds is the most rounds in which declarations are removed: each round removes those that used
// what the previous one removed.
const rounds = 20

// build compiles the tests of a package of the module. tags choose the side.
func (w *workshop) build(pkg, tags, binary string) (errorsAt []string, err error) {
	overlay, err := w.writeOverlay()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("go", "test", "-c", "-vet=off", "-mod=mod", "-overlay", overlay,
		"-gcflags=-e", "-tags", tags, "-o", binary, "./"+pkg)
	cmd.Dir, cmd.Env = w.dir, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil, nil
	}
	errorsAt = position.FindAllString(string(out), -1)
	if len(errorsAt) == 0 {
		return nil, fmt.Errorf("build tests of %s: %w\n%s", pkg, err, out)
	}
	return errorsAt, nil
}

// position is the position of an error in a test file.
var position = regexp.MustCompile(`(?m)^[^\s:]+_test\.go:\d+:\d+: .*$`)

// buildPruned builds both sides, without the declarations that do not compile on one of them.
func (w *workshop) buildPruned(s *suite) error {
	for range rounds {
		clean := true
		for _, side := range sides {
			wrong, err := w.build(s.pkg, side, s.binary(side))
			if err != nil {
				return err
			}
			if err := w.takeOut(wrong); err != nil {
				return err
			}
			clean = clean && len(wrong) == 0
		}
		if clean {
			return nil
		}
	}
	return errors.New("declarations that do not compile are left after all rounds")
}

// takeOut blanks the declarations that contain errors. Lines keep their numbers.
func (w *workshop) takeOut(wrong []string) error {
	lines := map[string][]int{}
	for _, e := range wrong {
		part := strings.SplitN(e, ":", 3)
		n, err := strconv.Atoi(part[1])
		if err != nil {
			return err
		}
		lines[part[0]] = append(lines[part[0]], n)
	}
	for name, at := range lines {
		path := filepath.Join(w.dir, name)
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if text, err = blank(name, text, at); err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// blank removes from a file the declarations that cover these lines: functions, types, and
// variables with their whole group.
func blank(name string, text []byte, lines []int) ([]byte, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, text, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	for _, line := range lines {
		n := covering(fset, f, line)
		if n == nil {
			return nil, fmt.Errorf("%s:%d: an error outside all declarations", name, line)
		}
		for i := fset.Position(n.Pos()).Offset; i < fset.Position(n.End()).Offset; i++ {
			if text[i] != '\n' {
				text[i] = ' '
			}
		}
	}
	return text, nil
}

// covering is the declaration at a line; in a group of types, imports or variables, the member of
// the group.
func covering(fset *token.FileSet, f *ast.File, line int) ast.Node {
	covers := func(n ast.Node) bool {
		return fset.Position(n.Pos()).Line <= line && line <= fset.Position(n.End()).Line
	}
	for _, d := range f.Decls {
		if !covers(d) {
			continue
		}
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok == token.CONST || !g.Lparen.IsValid() {
			return d
		}
		for _, s := range g.Specs {
			if covers(s) {
				return s
			}
		}
		return d
	}
	return nil
}
