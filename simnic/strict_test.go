package simnic

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestStrictTable compares the violations that the model records with the table of docs/testing.md,
// which has a witness or a reason for each.
func TestStrictTable(t *testing.T) {
	text, err := os.ReadFile("../docs/testing.md")
	if err != nil {
		t.Fatal(err)
	}
	recorded, rows := violationTexts(t), strictRows(string(text))
	for said, at := range recorded {
		if _, has := rows[said]; !has {
			t.Errorf("%s: no row of docs/testing.md has `%s`", at, said)
		}
	}
	for said, why := range rows {
		if recorded[said] == "" {
			t.Errorf("docs/testing.md: nothing in the model says `%s`", said)
		}
		if why == "" {
			t.Errorf("docs/testing.md: no witness of `%s`", said)
		}
	}
	if len(rows) < 20 {
		t.Errorf("%d rows", len(rows))
	}
}

// strictRows returns the rows of the table: what the model says, and the witness.
func strictRows(text string) map[string]string {
	_, text, _ = strings.Cut(text, "\n## Strict on purpose\n")
	text, _, _ = strings.Cut(text, "\nWhat the model was wrong about")
	rows := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|[^|]+\\| ([^|]*) \\|$").
		FindAllStringSubmatch(text, -1) {
		rows[m[1]] = strings.TrimSpace(m[2])
	}
	return rows
}

// violationTexts returns all texts of violations, with N for each number, and where each is
// recorded.
func violationTexts(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	number := regexp.MustCompile(`%#?[0-9]*[dx]`)
	texts, set := map[string]string{}, token.NewFileSet()
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			of, ok := call.Fun.(*ast.SelectorExpr)
			format, plain := call.Args[0].(*ast.BasicLit)
			if !ok || !plain || of.Sel.Name != "addViolation" && of.Sel.Name != "violation" {
				return true
			}
			said, err := strconv.Unquote(format.Value)
			if err != nil {
				t.Fatal(err)
			}
			if of.Sel.Name == "violation" {
				said = "send queue %#x: " + said
			}
			texts[number.ReplaceAllString(said, "N")] = set.Position(call.Pos()).String()
			return true
		})
	}
	return texts
}
