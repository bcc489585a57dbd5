package overlay

import (
	_ "embed"
	"fmt"
	"go/ast"
	"go/build"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// netSeam is the file that is added to package net.
//
//go:embed text/net.go.txt
var netSeam []byte

// SeamFile gives the name of the files that are added to packages.
const SeamFile = "zz_rdma_netstack.go"

// Target holds what a program is built for. Package net differs by it.
type Target struct {
	GOARCH string
	CGO    bool
	Race   bool
}

// fdMethod makes the prologue of a method of netFD.
func fdMethod(signature, code string) prologue {
	return prologue{signature, "if $0.rdma != nil { " + code + " }"}
}

// fdFunction makes the prologue of a function whose first parameter is a *netFD.
func fdFunction(signature, code string) prologue {
	return prologue{signature, "if $1.rdma != nil { " + code + " }"}
}

// rawMethod makes the prologue of a method of rawConn.
func rawMethod(signature, code string) prologue {
	return prologue{signature, "if $0.ok() && $0.fd.rdma != nil { " + code + " }"}
}

// optionSetter makes the prologue of a function that sets a socket option.
func optionSetter(signature, level, name, value string) prologue {
	return fdFunction(signature,
		"return $1.rdma.SetOption(syscall."+level+", syscall."+name+", "+value+")")
}

// copying gives the prologue of sendFile and spliceFrom, which send what they read from $2.
const copying = "n, err := $1.rdma.ReadFrom($2); return n, rdmaBare(err), true } " +
	"else if rdmaHas($2) { return 0, nil, false"

// netPrologues returns those of package net, by function.
func netPrologues() map[string]prologue {
	const (
		bytesIn = "([]byte) (int,error)"
		setTime = "(time.Time) (error)"
		setInt  = "(*netFD,int) (error)"
		setBool = "(*netFD,bool) (error)"
		setDur  = "(*netFD,time.Duration) (error)"
		inet4   = "([]byte,*syscall.SockaddrInet4) (int,error)"
		inet6   = "([]byte,*syscall.SockaddrInet6) (int,error)"
		setIf   = "(*netFD,*Interface) (error)"
		join    = "(*netFD,*Interface,IP) (error)"
		copied  = "(*netFD,io.Reader) (int64,error,bool)"
	)
	return map[string]prologue{
		"socket": {"(context.Context,string,int,int,int,bool,sockaddr,sockaddr," +
			"func(context.Context, string, string, syscall.RawConn) error) (*netFD,error)",
			"if fd, err := rdmaSocket($1, $2, $3, $4, $6, $7, $8, $9); fd != nil || err != nil " +
				"{ return fd, err }"},
		"netFD.Close":      fdMethod("() (error)", "return $0.rdmaClose()"),
		"netFD.closeRead":  fdMethod("() (error)", "return $0.rdma.CloseRead()"),
		"netFD.closeWrite": fdMethod("() (error)", "return $0.rdma.CloseWrite()"),
		"netFD.Read":       fdMethod(bytesIn, "return $0.rdma.Read($1)"),
		"netFD.Write":      fdMethod(bytesIn, "return $0.rdma.Write($1)"),
		"netFD.readFrom": fdMethod("([]byte) (int,syscall.Sockaddr,error)",
			"return $0.rdmaReadFrom($1)"),
		"netFD.readFromInet4": fdMethod(inet4, "return $0.rdmaReadFromInet4($1, $2)"),
		"netFD.readFromInet6": fdMethod(inet6, "return $0.rdmaReadFromInet6($1, $2)"),
		"netFD.readMsg": fdMethod("([]byte,[]byte,int) (int,int,int,syscall.Sockaddr,error)",
			"return $0.rdmaReadMsg($1, $2, $3)"),
		"netFD.readMsgInet4": fdMethod("([]byte,[]byte,int,*syscall.SockaddrInet4) "+
			"(int,int,int,error)", "return $0.rdmaReadMsgInet4($1, $2, $3, $4)"),
		"netFD.readMsgInet6": fdMethod("([]byte,[]byte,int,*syscall.SockaddrInet6) "+
			"(int,int,int,error)", "return $0.rdmaReadMsgInet6($1, $2, $3, $4)"),
		"netFD.writeTo": fdMethod("([]byte,syscall.Sockaddr) (int,error)",
			"return $0.rdma.WriteAddr($1, rdmaAddrPort($2))"),
		"netFD.writeToInet4": fdMethod(inet4, "return $0.rdma.WriteAddr($1, rdmaAddrPort4($2))"),
		"netFD.writeToInet6": fdMethod(inet6, "return $0.rdma.WriteAddr($1, rdmaAddrPort6($2))"),
		"netFD.writeMsg": fdMethod("([]byte,[]byte,syscall.Sockaddr) (int,int,error)",
			"return $0.rdma.WriteMsg($1, $2, rdmaAddrPort($3))"),
		"netFD.writeMsgInet4": fdMethod("([]byte,[]byte,*syscall.SockaddrInet4) (int,int,error)",
			"return $0.rdma.WriteMsg($1, $2, rdmaAddrPort4($3))"),
		"netFD.writeMsgInet6": fdMethod("([]byte,[]byte,*syscall.SockaddrInet6) (int,int,error)",
			"return $0.rdma.WriteMsg($1, $2, rdmaAddrPort6($3))"),
		"netFD.SetDeadline":     fdMethod(setTime, "return $0.rdma.SetDeadline($1)"),
		"netFD.SetReadDeadline": fdMethod(setTime, "return $0.rdma.SetReadDeadline($1)"),
		"netFD.SetWriteDeadline": fdMethod(setTime,
			"return $0.rdma.SetWriteDeadline($1)"),
		"netFD.accept": fdMethod("() (*netFD,error)", "return $0.rdmaAccept()"),
		"netFD.dup":    fdMethod("() (*os.File,error)", "return $0.rdma.File()"),
		"netFD.writeBuffers": fdMethod("(*Buffers) (int64,error)",
			"return $0.rdmaWriteBuffers($1)"),

		"interfaceAddrTable": {"(*Interface) ([]Addr,error)",
			"if a, ok := rdmaInterfaceAddrs($1); ok { return a, nil }"},
		"newFileFD": {"(*os.File) (*netFD,error)",
			"if fd, err := rdmaFromFile($1); fd != nil || err != nil { return fd, err }"},
		"rawConn.Control": rawMethod("(func(uintptr)) (error)", "return $0.rdmaControl($1)"),
		"rawConn.Read":    rawMethod("(func(uintptr) bool) (error)", "return $0.rdmaRead($1)"),
		"rawConn.Write":   rawMethod("(func(uintptr) bool) (error)", "return $0.rdmaWrite($1)"),
		"rawConn.PollFD":  rawMethod("() (*poll.FD)", "return nil"),

		"setReadBuffer":  optionSetter(setInt, "SOL_SOCKET", "SO_RCVBUF", "$2"),
		"setWriteBuffer": optionSetter(setInt, "SOL_SOCKET", "SO_SNDBUF", "$2"),
		"setKeepAlive":   optionSetter(setBool, "SOL_SOCKET", "SO_KEEPALIVE", "rdmaInt($2)"),
		"setLinger":      fdFunction(setInt, "return $1.rdma.SetLinger($2)"),
		"setNoDelay":     optionSetter(setBool, "IPPROTO_TCP", "TCP_NODELAY", "rdmaInt($2)"),
		"setKeepAliveIdle": fdFunction(setDur, "return rdmaKeepAlive($1, syscall.TCP_KEEPIDLE, "+
			"rdmaSeconds($2), rdmaSeconds(defaultTCPKeepAliveIdle))"),
		"setKeepAliveInterval": fdFunction(setDur, "return rdmaKeepAlive($1, "+
			"syscall.TCP_KEEPINTVL, rdmaSeconds($2), rdmaSeconds(defaultTCPKeepAliveInterval))"),
		"setKeepAliveCount": fdFunction(setInt, "return rdmaKeepAlive($1, syscall.TCP_KEEPCNT, "+
			"$2, defaultTCPKeepAliveCount)"),
		"sendFile":   fdFunction(copied, copying),
		"spliceFrom": fdFunction(copied, copying),
		"spliceTo": {"(io.Writer,*netFD) (int64,error,bool)", "if $2.rdma != nil " +
			"{ n, err := $2.rdma.WriteTo($1); return n, rdmaBare(err), true }"},
		"isUsingMultipathTCP":       fdFunction("(*netFD) (bool)", "return false"),
		"joinIPv4Group":             fdFunction(join, "return $1.rdma.JoinGroup($2, $3)"),
		"joinIPv6Group":             fdFunction(join, "return $1.rdma.JoinGroup($2, $3)"),
		"setIPv4MulticastInterface": fdFunction(setIf, "return nil"),
		"setIPv6MulticastInterface": fdFunction(setIf, "return nil"),
		"setIPv4MulticastLoopback": optionSetter(setBool, "IPPROTO_IP", "IP_MULTICAST_LOOP",
			"rdmaInt($2)"),
		"setIPv6MulticastLoopback": optionSetter(setBool, "IPPROTO_IPV6", "IPV6_MULTICAST_LOOP",
			"rdmaInt($2)"),
	}
}

// Functions of package net that need no prologue.
var (
	// kernelOnly use the descriptor of a netFD, and are called for the kernel's sockets only.
	kernelOnly = []string{"newFD", "netFD.init", "netFD.connect", "netFD.dial",
		"netFD.listenStream", "netFD.listenDatagram", "netFD.shutdown", "hasFallenBack",
		"isUsingMPTCPProto"}
	// makers make a netFD. Any further one would make sockets that nobody asked us about.
	makers = []string{"newFD", "socket", "netFD.accept", "newFileFD"}
)

// NetPackage returns the files of package net of a GOROOT that change, and the one that is added,
// by their paths there. Nothing of the GOROOT is written. A package net of unknown shape is an
// error that lists the functions.
func NetPackage(goroot string, target Target) (map[string][]byte, error) {
	dir := filepath.Join(goroot, "src", "net")
	ctx := build.Default
	ctx.GOROOT, ctx.GOOS, ctx.GOARCH, ctx.CgoEnabled = goroot, "linux", target.GOARCH, target.CGO
	ctx.BuildTags, ctx.ToolTags = nil, nil
	if target.Race {
		ctx.BuildTags = []string{"race"}
	}
	if _, err := os.Stat(filepath.Join(dir, "net.go")); err != nil {
		return nil, fmt.Errorf("GOROOT %s has no source of package net: install Go from "+
			"go.dev/dl, or the package of your system that has its source", goroot)
	}
	p, err := ctx.ImportDir(dir, 0)
	if err != nil {
		return nil, fmt.Errorf("read package net of GOROOT: %w", err)
	}
	c := &netChange{prologues: netPrologues(), seen: map[string]bool{},
		files: map[string][]byte{filepath.Join(dir, SeamFile): netSeam}}
	for _, name := range slices.Concat(p.GoFiles, p.CgoFiles) {
		if err := c.changeFile(filepath.Join(dir, name)); err != nil {
			return nil, fmt.Errorf("package net of GOROOT %s: %w", goroot, err)
		}
	}
	return c.files, c.shapeError(goroot)
}

// netChange collects the changes to package net.
type netChange struct {
	prologues map[string]prologue
	seen      map[string]bool
	field     bool // netFD has got its field
	unknown   []string
	files     map[string][]byte
}

// changeFile changes one file.
func (c *netChange) changeFile(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	f, err := parseSource(filepath.Base(path), text)
	if err != nil {
		return err
	}
	for _, d := range f.ast.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			c.changeFunction(f, d)
		case *ast.GenDecl:
			c.addField(f, d)
		}
	}
	out, err := f.changedText()
	if out != nil {
		c.files[path] = out
	}
	return err
}

// changeFunction gives d its prologue, or finds that it may not go without.
func (c *netChange) changeFunction(f *sourceFile, d *ast.FuncDecl) {
	id := functionName(d)
	p, ok := c.prologues[id]
	if !ok {
		if usesDescriptor(d.Body) && !slices.Contains(kernelOnly, id) {
			c.refuseShape("%s: %s uses a descriptor and is not known", f.name, id)
		}
		if makesSocket(d.Body) && !slices.Contains(makers, id) {
			c.refuseShape("%s: %s makes a netFD and is not known", f.name, id)
		}
		return
	}
	if c.seen[id] {
		c.refuseShape("%s: %s is there twice", f.name, id)
		return
	}
	c.seen[id] = true
	if err := f.insertPrologue(d, p); err != nil {
		c.refuseShape("%v", err)
	}
}

// addField gives netFD its field.
func (c *netChange) addField(f *sourceFile, d *ast.GenDecl) {
	for _, s := range d.Specs {
		t, ok := s.(*ast.TypeSpec)
		if !ok || t.Name.Name != "netFD" {
			continue
		}
		if st, ok := t.Type.(*ast.StructType); ok {
			f.insertAt(st.Fields.Closing, "\nrdma RDMASocket\n")
			c.field = true
		}
	}
}

func (c *netChange) refuseShape(format string, args ...any) {
	c.unknown = append(c.unknown, fmt.Sprintf(format, args...))
}

// shapeError returns the error for a package net of unknown shape.
func (c *netChange) shapeError(goroot string) error {
	for id := range c.prologues {
		if !c.seen[id] {
			c.refuseShape("%s is missing", id)
		}
	}
	if !c.field {
		c.refuseShape("type netFD is missing")
	}
	if len(c.unknown) == 0 {
		return nil
	}
	slices.Sort(c.unknown)
	return fmt.Errorf("package net of GOROOT %s is of a shape that this version does not know; "+
		"use a Go release that docs/unmodified.md lists, or a newer rdma-netstack:\n\t%s", goroot,
		strings.Join(c.unknown, "\n\t"))
}

// usesDescriptor reports whether code uses the descriptor of a netFD.
func usesDescriptor(body *ast.BlockStmt) bool {
	return containsNode(body, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		return ok && (s.Sel.Name == "pfd" || s.Sel.Name == "Sysfd")
	})
}

// makesSocket reports whether code makes a netFD.
func makesSocket(body *ast.BlockStmt) bool {
	return containsNode(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			id, ok := n.Fun.(*ast.Ident)
			return ok && id.Name == "newFD"
		case *ast.CompositeLit:
			id, ok := n.Type.(*ast.Ident)
			return ok && id.Name == "netFD"
		}
		return false
	})
}

func containsNode(body *ast.BlockStmt, is func(ast.Node) bool) (found bool) {
	if body == nil {
		return false
	}
	ast.Inspect(body, func(n ast.Node) bool {
		found = found || n != nil && is(n)
		return !found
	})
	return found
}
