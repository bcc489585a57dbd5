package overlay

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Kind names a kind of use of descriptors that goes round package net.
type Kind string

// The kinds. A program with SocketCalls or Pollers is refused.
const (
	SocketCalls Kind = "socket"  // makes IP sockets by system calls: the kernel would serve them
	Pollers     Kind = "poller"  // waits for descriptors that it reads by system calls
	Inherited   Kind = "inherit" // makes sockets of descriptors: FileListener, FileConn
	Files       Kind = "file"    // asks a socket for its File, which a slice's refuses
	CGo         Kind = "cgo"     // C code may have sockets of its own
)

// Kinds returns all that --allow takes.
func Kinds() []Kind { return []Kind{SocketCalls, Pollers, Inherited, Files, CGo} }

// refused reports whether a program with a finding of this kind is refused.
func (k Kind) refused() bool { return k == SocketCalls || k == Pollers }

// Finding describes one use of a descriptor in a package that the program imports.
type Finding struct {
	Kind     Kind
	Package  string
	Function string // with its receiver type: Type.Name
	File     string // FILE:LINE
	Call     string // such as unix.Socket
	inMain   bool
}

func (f Finding) String() string {
	return fmt.Sprintf("%s: %s.%s calls %s (%s)", f.File, f.Package, f.Function, f.Call, f.Kind)
}

// Calls of syscall and golang.org/x/sys/unix, by what they are for.
var (
	socketCalls  = []string{"Socket"}
	pollerCalls  = []string{"EpollCreate", "EpollCreate1", "EpollCtl", "EpollWait", "IoUringSetup"}
	messageCalls = []string{"Accept", "Accept4", "Recvfrom", "Recvmsg", "RecvmsgBuffers", "Sendmsg",
		"SendmsgN", "SendmsgBuffers", "Read", "Write", "Readv", "Writev"}
	// rawNumbers lists numbers of system calls that make sockets.
	rawNumbers = []string{"SYS_SOCKET", "SYS_IO_URING_SETUP"}
	// otherFamilies lists those whose sockets are the kernel's anyway.
	otherFamilies = []string{"AF_UNIX", "AF_LOCAL", "AF_NETLINK", "AF_VSOCK", "AF_PACKET", "AF_CAN",
		"AF_ALG", "AF_BLUETOOTH", "AF_KEY", "AF_XDP", "AF_QIPCRTR", "AF_TIPC"}
)

// known matches packages whose sockets are for questions to the kernel or are ours.
var known = regexp.MustCompile(`^(golang\.org/x/sys/|golang\.org/x/net/internal/socket$|` +
	`github\.com/rdma-netstack/rdma-netstack/|gvisor\.dev/gvisor/|github\.com/vishvananda/|` +
	`github\.com/insomniacslk/dhcp/|github\.com/mdlayher/(socket|netlink|packet)|` +
	`github\.com/fsnotify/fsnotify|github\.com/u-root/uio)`)

// listedPackage decodes what "go list -json" prints of a package.
type listedPackage struct {
	ImportPath, Dir, Name string
	Standard              bool
	GoFiles, CgoFiles     []string
	Module                *struct{ Path, Version string }
	Error                 *struct{ Err string }
}

func (p *listedPackage) moduleVersion() (path, version string) {
	if p.Module == nil {
		return "", ""
	}
	return p.Module.Path, p.Module.Version
}

// listPackages lists what a package is built of.
func listPackages(ctx context.Context, g *goTool, args ...string) (all []listedPackage, err error) {
	out, err := g.output(ctx, append([]string{"list",
		"-json=ImportPath,Dir,Name,Standard,GoFiles,CgoFiles,Module,Error"}, args...)...)
	if err != nil {
		return nil, err
	}
	for d := json.NewDecoder(strings.NewReader(out)); ; {
		var p listedPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
}

// scanPackages finds the uses of descriptors in packages.
func scanPackages(packages []listedPackage) (all []Finding, err error) {
	for _, p := range packages {
		if p.Standard || known.MatchString(p.ImportPath+"/") || known.MatchString(p.ImportPath) {
			continue
		}
		if len(p.CgoFiles) > 0 {
			all = append(all, Finding{Kind: CGo, Package: p.ImportPath, Function: "*",
				File: filepath.Join(p.Dir, p.CgoFiles[0]), Call: "C"})
		}
		p.ImportPath, _, _ = strings.Cut(p.ImportPath, " ") // "p [p.test]": p with its tests
		s := packageScan{pkg: p}
		for _, name := range slices.Concat(p.GoFiles, p.CgoFiles) {
			if name == SeamFile || name == testSeamFile || filepath.IsAbs(name) {
				continue // our own, or the main function that go test has written
			}
			if err := s.scanFile(filepath.Join(p.Dir, name)); err != nil {
				return nil, err
			}
		}
		all = append(all, s.verdicts()...)
	}
	seen := map[Finding]bool{}
	return slices.DeleteFunc(all, func(f Finding) bool {
		again := seen[f] // a package is listed again with its tests
		seen[f] = true
		return again
	}), nil
}

// packageScan collects the findings in one package.
type packageScan struct {
	pkg      listedPackage
	found    []Finding
	messages bool // it calls accept, recv or the like itself
}

// verdicts leaves out pollers of a package that moves no data by descriptors.
func (s *packageScan) verdicts() []Finding {
	return slices.DeleteFunc(s.found, func(f Finding) bool {
		return f.Kind == Pollers && !s.messages
	})
}

func (s *packageScan) scanFile(path string) error {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
	if err != nil {
		return fmt.Errorf("%s is not built by go build either: %w", s.pkg.ImportPath, err)
	}
	system, network := map[string]bool{}, ""
	for _, i := range file.Imports {
		imported, _ := strconv.Unquote(i.Path.Value)
		name := imported[strings.LastIndex(imported, "/")+1:]
		if i.Name != nil {
			name = i.Name.Name
		}
		switch imported {
		case "syscall", "golang.org/x/sys/unix":
			system[name] = true
		case "net":
			network = name
		}
	}
	if len(system) == 0 && network == "" {
		return nil
	}
	for _, d := range file.Decls {
		function := "init"
		if fn, ok := d.(*ast.FuncDecl); ok {
			function = functionName(fn)
		}
		ast.Inspect(d, func(n ast.Node) bool {
			kind, call := s.classify(n, system, network)
			if kind != "" {
				at := fset.Position(n.Pos())
				s.found = append(s.found, Finding{Kind: kind, Package: s.pkg.ImportPath,
					Function: function, Call: call,
					File: fmt.Sprintf("%s:%d", at.Filename, at.Line)})
			}
			return true
		})
	}
	return nil
}

// classify says what kind of use a node is, or "".
func (s *packageScan) classify(n ast.Node, system map[string]bool, network string) (Kind, string) {
	switch n := n.(type) {
	case *ast.SelectorExpr:
		x, ok := n.X.(*ast.Ident)
		if !ok {
			return "", ""
		}
		call := x.Name + "." + n.Sel.Name
		switch {
		case system[x.Name] && slices.Contains(messageCalls, n.Sel.Name):
			s.messages = true
		case system[x.Name] && slices.Contains(pollerCalls, n.Sel.Name):
			return Pollers, call
		case system[x.Name] && slices.Contains(rawNumbers, n.Sel.Name):
			return SocketCalls, call
		case x.Name == network && network != "" && slices.Contains(
			[]string{"FileListener", "FileConn", "FilePacketConn"}, n.Sel.Name):
			return Inherited, call
		}
	case *ast.CallExpr:
		f, ok := n.Fun.(*ast.SelectorExpr)
		if !ok {
			return "", ""
		}
		if x, ok := f.X.(*ast.Ident); ok && system[x.Name] &&
			slices.Contains(socketCalls, f.Sel.Name) && !otherFamily(n.Args) {
			return SocketCalls, x.Name + "." + f.Sel.Name
		}
		if f.Sel.Name == "File" && len(n.Args) == 0 && network != "" {
			return Files, ".File()"
		}
	}
	return "", ""
}

// otherFamily reports whether the first argument of socket(2) names a family that is not IP.
func otherFamily(args []ast.Expr) bool {
	if len(args) == 0 {
		return false
	}
	family, ok := args[0].(*ast.SelectorExpr)
	return ok && slices.Contains(otherFamilies, family.Sel.Name)
}

// linkedFunctions returns the names of the functions in a program, those that were inlined
// included: its table of names for tracebacks has them, also if it is stripped of symbols.
func linkedFunctions(binary string) (map[string]bool, error) {
	f, err := elf.Open(binary)
	if err != nil {
		return nil, fmt.Errorf("read what was built: %w", err)
	}
	defer f.Close()
	for _, s := range f.Sections {
		if s.Type == elf.SHT_NOBITS || !strings.HasSuffix(s.Name, "gopclntab") {
			continue
		}
		data, err := s.Data()
		if err != nil {
			return nil, err
		}
		names := map[string]bool{}
		for _, name := range bytes.Split(data, []byte{0}) {
			if len(name) > 2 && len(name) < 1<<10 && bytes.IndexByte(name, '.') > 0 {
				names[string(name)] = true
			}
		}
		return names, nil
	}
	return nil, errors.New("what was built has no table of functions")
}

// isLinked reports whether the function of a finding is in a program.
func (f Finding) isLinked(functions map[string]bool) bool {
	if f.Function == "*" || f.Function == "init" {
		return true
	}
	pkg := f.Package
	if i := strings.LastIndex(pkg, "/"); strings.Contains(pkg[i+1:], ".") {
		pkg = pkg[:i+1] + strings.ReplaceAll(pkg[i+1:], ".", "%2e")
	}
	of, name, method := strings.Cut(f.Function, ".")
	candidates := []string{pkg + "." + f.Function, pkg + "." + f.Function + "[...]"}
	if method {
		candidates = append(candidates, pkg+".(*"+of+")."+name, pkg+".(*"+of+"[...])."+name,
			pkg+"."+of+"[...]."+name)
	}
	return slices.ContainsFunc(candidates, func(s string) bool {
		return functions[s] || functions[strings.Replace(s, pkg+".", "main.", 1)] &&
			f.inMain
	})
}
