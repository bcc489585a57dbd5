package tests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// lockedPackages lists those whose locks stack/doc.go orders.
var lockedPackages = []string{"./stack", "./stack/internal/...", "./link/failover", "./link/uplink",
	"./internal/hostnet", "./internal/backing"}

// TestLockOrder holds the locks of the stack to the order that stack/doc.go states. It follows
// calls from function to function within these packages, those of their interfaces to every type
// that implements them; calls of a function in a variable it does not see.
func TestLockOrder(t *testing.T) {
	order := statedLockOrder(t)
	place := map[string]int{}
	for i, name := range order {
		place[name] = i
	}
	c := newLockChecker(t, lockedPackages...)
	for _, name := range slices.Sorted(maps.Keys(c.locks)) {
		if _, stated := place[name]; !stated {
			t.Errorf("%s: the order of locks in stack/doc.go lacks it", name)
		}
	}
	for _, name := range order {
		if !c.locks[name] {
			t.Errorf("%s: the order of locks in stack/doc.go names it, and there is none", name)
		}
	}
	edges := c.edges()
	if len(edges) == 0 {
		t.Fatal("no lock is taken while another is held: the check sees nothing")
	}
	for _, e := range slices.SortedFunc(maps.Keys(edges), lockEdge.compare) {
		if place[e.held] >= place[e.taken] {
			t.Errorf("%s: %s is taken while %s is held, against the order in stack/doc.go",
				edges[e][0], e.taken, e.held)
		}
	}
}

// TestLockOrderBites has TestLockOrder's check find each place of a package that takes two locks
// the wrong way round, and no other.
func TestLockOrderBites(t *testing.T) {
	const folder = "testdata/lockorder"
	text, err := os.ReadFile(folder + "/lockorder.go")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	n := 0
	for line := range strings.Lines(string(text)) {
		if n++; strings.Contains(line, "// wrong") {
			want = append(want, fmt.Sprintf("lockorder.go:%02d", n))
		}
	}
	edges := newLockChecker(t, "./tests/"+folder).edges()
	found := edges[lockEdge{"lockorder.Inner.mu", "lockorder.Outer.mu"}]
	if len(want) == 0 || !slices.Equal(found, want) {
		t.Errorf("found %v, want %v", found, want)
	}
	if right := (lockEdge{"lockorder.Outer.mu", "lockorder.Inner.mu"}); len(edges) != 2 ||
		len(edges[right]) != 2 {
		t.Errorf("%v: want both orders only, the right one in two places", edges)
	}
}

// statedLockOrder reads the names after "# Locks" in the package comment of stack, outermost first.
func statedLockOrder(t *testing.T) (order []string) {
	text, err := os.ReadFile("../stack/doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "// # Locks\n")
	if !found {
		t.Fatal("stack/doc.go has no section Locks")
	}
	section, _, _ = strings.Cut(section, "// # ")
	for line := range strings.Lines(section) {
		names, listed := strings.CutPrefix(line, "//\t")
		names, _, _ = strings.Cut(names, "  ") // what the lock guards follows
		for name := range strings.SplitSeq(names, ",") {
			if listed {
				order = append(order, strings.TrimSpace(name))
			}
		}
	}
	return order
}

// lockEdge says that a lock is taken while another is held.
type lockEdge struct{ held, taken string }

func (e lockEdge) compare(o lockEdge) int {
	return strings.Compare(e.held+e.taken, o.held+o.taken)
}

// lockChecker holds what the functions of some packages do with locks.
type lockChecker struct {
	fset     *token.FileSet
	info     *types.Info
	locks    map[string]bool // every lock that there is: TYPE.FIELD, or PACKAGE.TYPE.FIELD
	types    []*types.Named  // which there are in the packages
	packages map[*types.Package]bool
	abstract map[*types.Func]bool // methods of interfaces
	calls    map[*types.Func][]lockedCall
	takes    map[*types.Func]map[string]bool // also by what it calls
	found    map[lockEdge][]string           // with the places, in order
	fn       *types.Func                     // that is looked at
}

// lockedCall records a call, or the taking of a lock, with others held.
type lockedCall struct {
	held   []string
	callee *types.Func // nil: lock is taken
	lock   string
	at     string
}

// newLockChecker type-checks the packages and reads their functions.
func newLockChecker(t *testing.T, packages ...string) *lockChecker {
	c := &lockChecker{fset: token.NewFileSet(), locks: map[string]bool{},
		packages: map[*types.Package]bool{}, abstract: map[*types.Func]bool{},
		calls: map[*types.Func][]lockedCall{}, found: map[lockEdge][]string{},
		info: &types.Info{Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{},
			Selections: map[*ast.SelectorExpr]*types.Selection{},
			Types:      map[ast.Expr]types.TypeAndValue{}}}
	type listed struct {
		ImportPath, Dir, Export string
		GoFiles                 []string
		DepOnly                 bool
	}
	cmd := exec.Command("go", append([]string{"list", "-export", "-deps",
		"-json=ImportPath,Dir,Export,GoFiles,DepOnly"}, packages...)...)
	cmd.Dir, cmd.Stderr = "..", os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	exports, checked := map[string]string{}, map[string]*types.Package{}
	compiled := importer.ForCompiler(c.fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})
	dec := json.NewDecoder(bytes.NewReader(out))
	for dec.More() {
		var p listed
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
		if p.DepOnly {
			continue
		}
		var files []*ast.File
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(c.fset, filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
		}
		conf := types.Config{Importer: importFrom{checked, compiled}}
		pkg, err := conf.Check(p.ImportPath, c.fset, files, c.info)
		if err != nil {
			t.Fatal(err)
		}
		checked[p.ImportPath], c.packages[pkg] = pkg, true
		c.noteLocks(pkg)
		for _, f := range files {
			c.noteFunctions(f)
		}
	}
	return c
}

// importFrom imports packages that are checked already, and others as they are compiled.
type importFrom struct {
	checked  map[string]*types.Package
	compiled types.Importer
}

// Import implements types.Importer.
func (i importFrom) Import(path string) (*types.Package, error) {
	if p := i.checked[path]; p != nil {
		return p, nil
	}
	return i.compiled.Import(path)
}

// isLock reports whether a type is sync.Mutex or sync.RWMutex.
func isLock(t types.Type) bool {
	name := t.String()
	return name == "sync.Mutex" || name == "sync.RWMutex"
}

// noteLocks notes the locks that are fields of the types of a package.
func (c *lockChecker) noteLocks(pkg *types.Package) {
	for _, name := range pkg.Scope().Names() {
		obj, isType := pkg.Scope().Lookup(name).(*types.TypeName)
		if !isType {
			continue
		}
		if named, ok := obj.Type().(*types.Named); ok && named.TypeParams() == nil {
			c.types = append(c.types, named)
		}
		s, isStruct := obj.Type().Underlying().(*types.Struct)
		for i := 0; isStruct && i < s.NumFields(); i++ {
			if isLock(s.Field(i).Type()) {
				c.locks[lockName(obj, s.Field(i).Name())] = true
			}
		}
	}
}

func lockName(owner *types.TypeName, field string) string {
	name := owner.Name() + "." + field
	if p := owner.Pkg().Name(); p != "stack" {
		name = p + "." + name
	}
	return name
}

// noteFunctions reads the functions of a file.
func (c *lockChecker) noteFunctions(f *ast.File) {
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
			c.fn = c.info.Defs[fn.Name].(*types.Func)
			c.block(fn.Body, map[string]bool{})
		}
	}
}

// block follows statements with the locks held at its beginning, which it changes to those held at
// its end.
func (c *lockChecker) block(n ast.Node, held map[string]bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			if lit, ok := n.Call.Fun.(*ast.FuncLit); ok {
				c.later(lit)
			}
			return false
		case *ast.FuncLit: // kept for later
			c.later(n)
			return false
		case *ast.DeferStmt:
			if _, method := c.lockCall(n.Call); strings.HasSuffix(method, "Unlock") {
				return false // at the end of the function
			}
		case *ast.BlockStmt:
			inside := maps.Clone(held)
			for _, s := range n.List {
				c.block(s, inside)
			}
			if !leaves(n) {
				maps.Copy(held, inside)
				maps.DeleteFunc(held, func(name string, _ bool) bool { return !inside[name] })
			}
			return false
		case *ast.CallExpr:
			for _, arg := range n.Args {
				if lit, ok := arg.(*ast.FuncLit); ok && !isLater(n) {
					c.block(lit.Body, held)
				} else {
					c.block(arg, held)
				}
			}
			if lit, ok := n.Fun.(*ast.FuncLit); ok {
				c.block(lit.Body, held)
			} else {
				c.block(n.Fun, held)
			}
			c.call(n, held)
			return false
		}
		return true
	})
}

// leaves reports whether a block ends the way through what it is in.
func leaves(b *ast.BlockStmt) bool {
	if len(b.List) == 0 {
		return false
	}
	switch b.List[len(b.List)-1].(type) {
	case *ast.ReturnStmt, *ast.BranchStmt:
		return true
	}
	return false
}

// later follows a function that is called later or by another goroutine, which holds nothing at
// first.
func (c *lockChecker) later(lit *ast.FuncLit) {
	caller := c.fn
	c.fn = types.NewFunc(lit.Pos(), nil, "", nil)
	c.block(lit.Body, map[string]bool{})
	c.fn = caller
}

// isLater reports whether a call leaves its arguments to another goroutine.
func isLater(call *ast.CallExpr) bool {
	s, ok := call.Fun.(*ast.SelectorExpr)
	return ok && slices.Contains([]string{"Go", "AfterFunc", "NewStopped", "OnceFunc"}, s.Sel.Name)
}

// call notes a call with the locks held, and changes them if it takes or gives back one.
func (c *lockChecker) call(n *ast.CallExpr, held map[string]bool) {
	at := c.fset.Position(n.Pos())
	note := lockedCall{held: slices.Sorted(maps.Keys(held)),
		at: fmt.Sprintf("%s:%02d", filepath.Base(at.Filename), at.Line)}
	switch name, method := c.lockCall(n); {
	case strings.HasSuffix(method, "Unlock"):
		delete(held, name)
	case method != "":
		note.lock = name
		held[name] = true
		c.calls[c.fn] = append(c.calls[c.fn], note)
	default:
		if note.callee = c.calleeOf(n); note.callee != nil {
			c.calls[c.fn] = append(c.calls[c.fn], note)
		}
	}
}

// lockCall returns the lock of a call of one of its methods, and the method; "" for other calls.
func (c *lockChecker) lockCall(n *ast.CallExpr) (name, method string) {
	s, ok := n.Fun.(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	of := c.info.Types[s.X].Type
	if of == nil || !isLock(of) {
		return "", ""
	}
	field, ok := s.X.(*ast.SelectorExpr)
	if !ok || c.info.Selections[field] == nil {
		return "", ""
	}
	owner := c.info.Selections[field].Recv()
	if p, ok := owner.Underlying().(*types.Pointer); ok {
		owner = p.Elem()
	}
	named, ok := owner.(*types.Named)
	if !ok {
		return "", ""
	}
	return lockName(named.Obj(), field.Sel.Name), s.Sel.Name
}

// calleeOf returns the function that a call names, nil if it is not known.
func (c *lockChecker) calleeOf(n *ast.CallExpr) *types.Func {
	var id *ast.Ident
	switch f := n.Fun.(type) {
	case *ast.Ident:
		id = f
	case *ast.SelectorExpr:
		id = f.Sel
	default:
		return nil
	}
	fn, _ := c.info.Uses[id].(*types.Func)
	return fn
}

// implementations notes for each method of an interface of the packages which methods may be meant
// where it is called.
func (c *lockChecker) implementations() {
	of := map[*types.Func][]lockedCall{}
	for _, calls := range c.calls {
		for _, call := range calls {
			if call.callee == nil || of[call.callee] != nil {
				continue
			}
			recv := call.callee.Signature().Recv()
			if recv == nil || !types.IsInterface(recv.Type()) ||
				!c.packages[call.callee.Pkg()] {
				continue
			}
			iface := recv.Type().Underlying().(*types.Interface)
			for _, named := range c.types {
				p := types.NewPointer(named)
				if types.IsInterface(named) || !types.Implements(p, iface) {
					continue
				}
				m, _, _ := types.LookupFieldOrMethod(p, true, call.callee.Pkg(), call.callee.Name())
				c.abstract[call.callee] = true
				of[call.callee] = append(of[call.callee], lockedCall{callee: m.(*types.Func)})
			}
		}
	}
	maps.Copy(c.calls, of)
}

// edges returns which lock is taken while which is held, with the places.
func (c *lockChecker) edges() map[lockEdge][]string {
	c.implementations()
	c.takes = map[*types.Func]map[string]bool{}
	for again := true; again; {
		again = false
		for fn, calls := range c.calls {
			if c.takes[fn] == nil {
				c.takes[fn] = map[string]bool{}
			}
			before := len(c.takes[fn])
			for _, call := range calls {
				if call.callee == nil {
					c.takes[fn][call.lock] = true
				}
				maps.Copy(c.takes[fn], c.takes[call.callee])
			}
			again = again || len(c.takes[fn]) > before
		}
	}
	for _, calls := range c.calls {
		for _, call := range calls {
			taken := c.takes[call.callee]
			if call.callee == nil {
				taken = map[string]bool{call.lock: true}
			}
			for _, held := range call.held {
				for lock := range taken {
					if lock == held && c.abstract[call.callee] {
						continue // a type that calls an interface's method may implement it too
					}
					e := lockEdge{held, lock}
					c.found[e] = append(c.found[e], call.at)
				}
			}
		}
	}
	for _, places := range c.found {
		slices.Sort(places)
	}
	return c.found
}
