package tests

import (
	"fmt"
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// page is one Markdown file; name is relative to the module, with slashes.
type page struct{ name, text string }

// tree is what pages may name.
type tree struct {
	exists  func(name string) bool // of a file, directory or pattern of the module
	tests   map[string]bool        // functions TestX, FuzzX, BenchmarkX and ExampleX
	targets map[string]bool        // of the Makefile
}

var (
	// code matches what stands between backquotes, and the target of a link.
	code = regexp.MustCompile("`[^`\n]+`|\\]\\([^)]+\\)")
	// sourceName matches the name of a file of ours, or a pattern for some.
	sourceName = regexp.MustCompile(`^[\w.*/-]+\.(go|s|sh|md|svg|json|yml)$`)
	// folder matches the name of a directory with at least one slash.
	folder     = regexp.MustCompile(`^(\.\./)*[\w-]+(/[\w-]+)+/?$`)
	testName   = regexp.MustCompile(`\b(Test|Fuzz|Benchmark|Example)[A-Z]\w+`)
	makeTarget = regexp.MustCompile(`\bmake ([a-z][a-z0-9-]*)`)
	testFunc   = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark|Example)\w+)\(`)
	makeRule   = regexp.MustCompile(`(?m)^([a-z0-9-]+):`)
)

// TestDocs wants every file, test and make target that the documentation names
// to exist.
func TestDocs(t *testing.T) {
	names, err := filepath.Glob("../*.md")
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob("../docs/*.md")
	if err != nil || len(names) == 0 || len(more) == 0 {
		t.Fatalf("found %d pages, and %d in docs: %v", len(names), len(more), err)
	}
	have := readTree(t)
	for _, name := range append(names, more...) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		p := page{strings.TrimPrefix(filepath.ToSlash(name), "../"), string(text)}
		if p.name == "CHANGELOG.md" { // it names what was
			continue
		}
		for _, wrong := range p.check(have) {
			t.Errorf("%s: %s", p.name, wrong)
		}
	}
}

// readTree looks at the module.
func readTree(t *testing.T) tree {
	have := tree{
		exists: func(name string) bool {
			found, err := filepath.Glob(filepath.Join("..", filepath.FromSlash(name)))
			return err == nil && len(found) > 0
		},
		tests: map[string]bool{}, targets: map[string]bool{},
	}
	for _, f := range sources(t) {
		for _, m := range testFunc.FindAllStringSubmatch(string(f.src), -1) {
			have.tests[m[1]] = true
		}
	}
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range makeRule.FindAllStringSubmatch(string(makefile), -1) {
		have.targets[m[1]] = true
	}
	return have
}

// check lists what the page names that is not there. A file named without its
// directory has to be in one that the page names before it.
func (p page) check(have tree) (wrong []string) {
	dirs := []string{".", path.Dir(p.name)}
	for i, line := range strings.Split(p.text, "\n") {
		missing := func(what, name string) {
			wrong = append(wrong, fmt.Sprintf("line %d: no %s %s", i+1, what, name))
		}
		for _, c := range code.FindAllString(line, -1) {
			link := c[0] == ']'
			name := strings.TrimSuffix(strings.TrimPrefix(strings.Trim(c, "`"), "]("), ")")
			name, _, _ = strings.Cut(name, "#")
			switch {
			case strings.Contains(name, "://") || name == "":
			case link || sourceName.MatchString(name):
				in := slices.IndexFunc(dirs, func(d string) bool {
					return have.exists(path.Join(d, name))
				})
				if in < 0 {
					missing("file", name)
				} else if strings.Contains(name, "/") {
					dirs = append(dirs, path.Dir(path.Join(dirs[in], name)))
				}
			case folder.MatchString(name) && have.exists(name):
				dirs = append(dirs, path.Clean(name))
			}
		}
		for _, name := range testName.FindAllString(line, -1) {
			if !have.tests[name] {
				missing("test", name)
			}
		}
		for _, m := range makeTarget.FindAllStringSubmatch(line, -1) {
			if strings.Contains(line, "`"+m[0]) && !have.targets[m[1]] {
				missing("make target", m[1])
			}
		}
	}
	return wrong
}

// TestDocsBite gives the check pages that name what is not there.
func TestDocsBite(t *testing.T) {
	have := tree{
		exists: func(name string) bool {
			return slices.Contains([]string{"dv/rx.go", "link/rdma", "link/rdma/tx.go",
				"link/rdma/internal/hdr/segment.go", "docs/testing.md", "Makefile"}, name)
		},
		tests:   map[string]bool{"TestThere": true},
		targets: map[string]bool{"demo": true},
	}
	for _, tt := range []struct{ name, text, want string }{
		{"file", "`dv/rx.go`", ""},
		{"missing file", "see\n`dv/verdict.go`", "line 2: no file dv/verdict.go"},
		{"after its directory", "`link/rdma` has `tx.go`", ""},
		{"after another file of it", "`link/rdma/tx.go` (`tx.go`)", ""},
		{"below a directory", "`link/rdma/tx.go`, `internal/hdr/segment.go`", ""},
		{"before its directory", "`tx.go` is in `link/rdma`", "no file tx.go"},
		{"link", "[tests](testing.md)", ""},
		{"broken link", "[tests](tests.md)", "no file tests.md"},
		{"URL", "[x](https://example.org/x.md)", ""},
		{"test", "`TestThere`", ""},
		{"missing test", "`TestGone` fails", "no test TestGone"},
		{"target", "`make demo`", ""},
		{"missing target", "`make tea`", "no make target tea"},
		{"prose", "we make tea", ""},
		{"kernel file", "`drivers/infiniband/core/uverbs_cmd.c`", ""},
	} {
		got := strings.Join(page{"docs/x.md", tt.text}.check(have), "; ")
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: found %q, want %q", tt.name, got, tt.want)
		}
	}
}

// upstream is what TestUpstream compares: texts by the names of files.
type upstream struct {
	pages    map[string]string // of docs/upstream
	programs map[string]string // of tests/conformance/upstream
	fixes    map[string]string // of link/rdma/internal/tcpfix
	table    string            // docs/netstack-workarounds.md
}

var (
	faultPage  = regexp.MustCompile(`^(\d\d)-[a-z-]+\.md$`)
	programOf  = regexp.MustCompile("(?m)^\\*\\*Program\\.\\*\\* `(Test\\w+)`")
	shownBy    = regexp.MustCompile(`shows\(t, "([a-z0-9-]+)"`)
	linkedPage = regexp.MustCompile(`Upstream: docs/upstream/([a-z0-9-]+\.md)\.`)
	tabledPage = regexp.MustCompile("^\\| `\\w+\\.go` \\| \\[\\d\\d\\]" +
		`\(upstream/([a-z0-9-]+\.md)\)`)
)

// check wants each fault of netstack to have a page and a program, and each workaround its page.
func (u *upstream) check() (wrong []string) {
	miss := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	shown := map[string]bool{}
	var programs []string
	for name, text := range u.programs {
		if name != "race_test.go" && strings.Contains(text, `"github.com/rdma-netstack/`) {
			miss("%s imports a package of ours", name)
		}
		for _, m := range shownBy.FindAllStringSubmatch(text, -1) {
			shown[m[1]+".md"] = true
			if u.pages[m[1]+".md"] == "" {
				miss("%s: no page %s", name, m[1])
			}
		}
		for _, m := range testFunc.FindAllStringSubmatch(text, -1) {
			programs = append(programs, m[1])
		}
	}
	var numbers []string
	for name, text := range u.pages {
		m := faultPage.FindStringSubmatch(name)
		if m == nil {
			if name != "README.md" {
				miss("docs/upstream/%s has no number", name)
			}
			continue
		}
		numbers = append(numbers, m[1])
		program := programOf.FindStringSubmatch(text)
		switch {
		case program == nil || !slices.Contains(programs, program[1]) || !shown[name]:
			miss("docs/upstream/%s has no program", name)
		case !strings.Contains(u.pages["README.md"], "]("+name+")"):
			miss("docs/upstream/README.md does not list %s", name)
		}
	}
	slices.Sort(numbers)
	for i, n := range numbers {
		if want := fmt.Sprintf("%02d", i+1); n != want {
			miss("docs/upstream has page %s in the place of %s", n, want)
			break
		}
	}
	for name, text := range u.fixes {
		links := linkedPage.FindAllStringSubmatch(text, -1)
		if n := strings.Count(text, "No longer needed"); n != len(links) {
			miss("%s: %d workarounds, %d links to pages", name, n, len(links))
		}
		for _, m := range links {
			if u.pages[m[1]] == "" {
				miss("%s: no page %s", name, m[1])
			}
		}
	}
	for line := range strings.Lines(u.table) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		if m := tabledPage.FindStringSubmatch(line); m == nil || u.pages[m[1]] == "" {
			miss("docs/netstack-workarounds.md: a row without a page: %.60s", line)
		}
	}
	return wrong
}

// TestUpstream compares the pages on netstack's faults with their programs and the workarounds.
// The programs themselves are run by their package.
func TestUpstream(t *testing.T) {
	read := func(pattern string) map[string]string {
		names, err := filepath.Glob(filepath.Join("..", filepath.FromSlash(pattern)))
		if err != nil || len(names) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(names), err)
		}
		texts := map[string]string{}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			texts[filepath.Base(name)] = string(text)
		}
		return texts
	}
	u := upstream{read("docs/upstream/*.md"), read("tests/conformance/upstream/*_test.go"),
		read("link/rdma/internal/tcpfix/*.go"),
		read("docs/netstack-workarounds.md")["netstack-workarounds.md"]}
	for _, wrong := range u.check() {
		t.Error(wrong)
	}
}

// TestUpstreamBite gives the check what is incomplete.
func TestUpstreamBite(t *testing.T) {
	for _, tt := range []struct{ name, file, text, want string }{
		{"complete", "", "", ""},
		{"a page without a program", "pages 02-b.md", "# b", "02-b.md has no program"},
		{"a page that nothing lists", "pages README.md", "none", "does not list 01-a.md"},
		{"a page without a number", "pages b.md", "# b", "b.md has no number"},
		{"a number left out", "pages 03-c.md", "**Program.** `TestA`", "03 in the place of 02"},
		{"a program without a page", "programs b_test.go", `shows(t, "09-x", true)`,
			"no page 09-x"},
		{"a program with a package of ours", "programs b_test.go",
			`import "github.com/rdma-netstack/rdma-netstack/stack"`, "a package of ours"},
		{"a workaround without a page", "fixes b.go", "// No longer needed when", "0 links"},
		{"a workaround with a page that is gone", "fixes b.go",
			"// Upstream: docs/upstream/07-x.md. No longer needed when", "no page 07-x.md"},
		{"a row without a page", "table", "| `x.go` | a fault | a fix | never |", "without a page"},
	} {
		u := upstream{
			pages: map[string]string{"README.md": "[01](01-a.md)",
				"01-a.md": "**Program.** `TestA`"},
			programs: map[string]string{"a_test.go": "func TestA(\n" + `shows(t, "01-a", true)`},
			fixes: map[string]string{
				"a.go": "// Upstream: docs/upstream/01-a.md. No longer needed when"},
			table: "| `a.go` | [01](upstream/01-a.md): a fault | a fix | never |\n",
		}
		switch kind, name, _ := strings.Cut(tt.file, " "); kind {
		case "pages":
			u.pages[name] = tt.text
		case "programs":
			u.programs[name] = tt.text
		case "fixes":
			u.fixes[name] = tt.text
		case "table":
			u.table += tt.text
		}
		got := strings.Join(u.check(), "; ")
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: found %q, want %q", tt.name, got, tt.want)
		}
	}
}

// answer matches a symbol of the module in a document: folder, type or function, method.
var answer = regexp.MustCompile("`([a-z0-9/]+)\\.([A-Za-z]\\w*)(?:\\.([A-Za-z]\\w*))?`")

// TestQuestions wants each symbol in the last section of docs/architecture.md to be one of the
// module's, and at least ten questions.
func TestQuestions(t *testing.T) {
	text, err := os.ReadFile("../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Ten questions\n")
	symbols := declared(sources(t))
	questions := 0
	for _, row := range strings.Split(section, "\n") {
		if !strings.HasPrefix(row, "| ") || !strings.Contains(row, "? |") {
			continue
		}
		questions++
		named := answer.FindAllStringSubmatch(row, -1)
		if len(named) == 0 {
			t.Errorf("no symbol answers: %s", row)
		}
		for _, m := range named {
			if name := strings.Trim(m[0], "`"); !symbols[name] {
				t.Errorf("there is no %s", name)
			}
		}
	}
	if questions < 10 {
		t.Errorf("%d questions", questions)
	}
}

// declared returns the names of all functions, types and methods: folder.Func, folder.Type and
// folder.Type.method.
func declared(files []*file) map[string]bool {
	names := map[string]bool{}
	for _, f := range files {
		if f.isTest() {
			continue
		}
		for _, d := range f.ast.Decls {
			switch d := d.(type) {
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if s, ok := s.(*ast.TypeSpec); ok {
						names[f.dir()+"."+s.Name.Name] = true
					}
				}
			case *ast.FuncDecl:
				names[f.dir()+"."+receiverOf(d)+d.Name.Name] = true
			}
		}
	}
	return names
}

// receiverOf returns the name of the type of a method and a dot; "" for a function.
func receiverOf(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	x := d.Recv.List[0].Type
	for {
		switch t := x.(type) {
		case *ast.StarExpr:
			x = t.X
		case *ast.IndexExpr:
			x = t.X
		case *ast.Ident:
			return t.Name + "."
		default:
			return ""
		}
	}
}
