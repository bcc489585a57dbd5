package overlay

import (
	_ "embed"
	"fmt"
	"go/ast"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// xnetModule names the module whose package internal/socket makes system calls on sockets of
// package net.
const xnetModule = "golang.org/x/net"

//go:embed text/socket.go.txt
var xnetSeam []byte

// xnetPrologues returns those of golang.org/x/net/internal/socket, by function.
func xnetPrologues() map[string]prologue {
	const one, several = "(*Message,int) (error)", "([]Message,int) (int,error)"
	return map[string]prologue{
		"Option.set": {"(*Conn,[]byte) (error)",
			"if done, err := rdmaSet($1, $0, $2); done { return err }"},
		"Conn.recvMsg": {one, "if done, err := rdmaReceive($0, $1, $2); done { return err }"},
		"Conn.sendMsg": {one, "if done, err := rdmaSend($0, $1, $2); done { return err }"},
		"Conn.recvMsgs": {several, "if s, ok := rdmaSocket($0).(rdmaBatch); ok " +
			"{ return s.ReadBatch($1, $2) }"},
		"Conn.sendMsgs": {several, "if s, ok := rdmaSocket($0).(rdmaBatch); ok " +
			"{ return s.WriteBatch($1, $2) }"},
	}
}

// copyXNet copies the module golang.org/x/net in dir to to, with prologues in internal/socket. A
// copy that is there is kept.
func copyXNet(dir, to string) error {
	return makeOnce(to, func(to string) error {
		if err := copyTree(dir, to); err != nil {
			return err
		}
		return changeXNet(filepath.Join(to, "internal", "socket"))
	})
}

// changeXNet inserts the prologues and adds our file.
func changeXNet(dir string) error {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return err
	}
	wanted := xnetPrologues()
	seen := map[string]bool{}
	for _, name := range names {
		// The other variants are of systems without these calls.
		if strings.HasSuffix(name, "_test.go") || strings.Contains(name, "stub") ||
			strings.HasPrefix(filepath.Base(name), "rawconn_no") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		f, err := parseSource(filepath.Base(name), text)
		if err != nil {
			return err
		}
		for _, d := range f.ast.Decls {
			d, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			p, ok := wanted[functionName(d)]
			if !ok {
				continue
			}
			if err := f.insertPrologue(d, p); err != nil {
				return fmt.Errorf("%s is of a version that this rdma-netstack does not know: %w",
					xnetModule, err)
			}
			seen[functionName(d)] = true
		}
		out, err := f.changedText()
		if err == nil && out != nil {
			err = os.WriteFile(name, out, 0o644)
		}
		if err != nil {
			return err
		}
	}
	for _, id := range slices.Sorted(maps.Keys(wanted)) {
		if !seen[id] {
			return fmt.Errorf("%s is of a version that this rdma-netstack does not know: %s of "+
				"internal/socket is missing", xnetModule, id)
		}
	}
	return os.WriteFile(filepath.Join(dir, SeamFile), xnetSeam, 0o644)
}

// makeOnce calls fill to make the directory dir, unless it is there. One that fill does not finish
// is not left behind.
func makeOnce(dir string, fill func(dir string) error) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	temporary, err := os.MkdirTemp(filepath.Dir(dir), ".new-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temporary)
	if err := fill(temporary); err != nil {
		return err
	}
	if err := os.Rename(temporary, dir); err != nil {
		if _, there := os.Stat(dir); there == nil {
			return nil // another process was faster
		}
		return err
	}
	return os.Chmod(dir, 0o755)
}

// copyTree copies the files below from, all of them writable. Symbolic links are followed.
func copyTree(from, to string) error { return eachFile(from, to, copyFile) }

// linkTree makes hard links of the files below from, or copies where there cannot be links.
func linkTree(from, to string) error {
	return eachFile(from, to, func(from, to string) error {
		if err := os.Link(from, to); err != nil {
			return copyFile(from, to)
		}
		return nil
	})
}

// eachFile makes the directories of from below to, and calls f for each file.
func eachFile(from, to string, f func(from, to string) error) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o755)
		}
		return f(path, filepath.Join(to, rel))
	})
}

func copyFile(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, info.Mode().Perm()|0o200)
}
