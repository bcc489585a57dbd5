package saved

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/rdma-netstack/rdma-netstack/internal/doctor/host"
)

// Machine describes what Save reads.
type Machine struct {
	// Host is what the doctor looks at. Its Root is where files are read; "" is the machine's own.
	Host host.Config
	// Run runs a program and returns what it prints.
	Run func(argv ...string) ([]byte, error)
	// Hosts has the names of the machine, which are taken out.
	Hosts []string
}

// maxFile bounds what is kept of a file or a program's output, in bytes.
const maxFile = 1 << 20

// Save writes to dir the files that the doctor reads and what ethtool, lspci, mlxconfig and devlink
// print of the card, without addresses of any kind, serial numbers, UUIDs and names of the machine.
// It makes dir, and refuses one that has something in it. left has a line for each program that
// told nothing.
func Save(dir string, m Machine) (left []string, err error) {
	if names, err := os.ReadDir(dir); err == nil && len(names) > 0 {
		return nil, fmt.Errorf("save to %s: there is something in it already: name a new directory",
			dir)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("save to %s: %w", dir, err)
	}
	c := copier{from: m.Host.Root, to: dir, words: newRedactor(m.Hosts...)}
	if c.from == "" {
		c.from = "/"
	}
	cfg := m.Host
	cfg.Seen = c.keep
	host.Run(cfg)
	at, pci := host.Find(m.Host)
	for _, o := range outputs() {
		argv := o.argv(at.Netdev, pci)
		if argv == nil {
			continue
		}
		text, err := m.Run(argv...)
		if err != nil && len(text) == 0 {
			left = append(left, fmt.Sprintf("%s: %v", strings.Join(argv, " "), err))
			continue
		}
		c.write(o.file, text)
	}
	return left, c.err
}

// copier copies single files of a tree, with links as they are.
type copier struct {
	from, to string
	words    *redactor
	err      error
}

// fail keeps the first error.
func (c *copier) fail(err error) { c.err = errors.Join(c.err, err) }

// write writes a file below the directory.
func (c *copier) write(name string, text []byte) {
	name = filepath.Join(c.to, c.words.redact(name))
	if len(text) > maxFile {
		text = text[:maxFile]
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		c.fail(err)
		return
	}
	if err := os.WriteFile(name, []byte(c.words.redact(string(text))), 0o644); err != nil {
		c.fail(err)
	}
}

// keep copies what is at a path: a file with its text, of a directory the names in it.
func (c *copier) keep(name string) {
	at, ok := c.follow(name)
	if !ok {
		return
	}
	st, err := os.Stat(filepath.Join(c.from, at))
	switch {
	case err != nil:
	case st.IsDir():
		c.keepNames(at)
	case st.Mode()&fs.ModeDevice != 0:
		c.write(at, nil)
		c.fail(os.Chmod(filepath.Join(c.to, c.words.redact(at)), st.Mode().Perm()|0o200))
	default:
		c.write(at, c.text(at))
		if strings.HasPrefix(at, "dev/") {
			c.fail(os.Chmod(filepath.Join(c.to, c.words.redact(at)), st.Mode().Perm()|0o200))
		}
	}
}

// text returns what a file holds, as far as it can be read: some of sysfs cannot.
func (c *copier) text(at string) []byte {
	f, err := os.Open(filepath.Join(c.from, at))
	if err != nil {
		return nil
	}
	defer f.Close()
	text, _ := io.ReadAll(io.LimitReader(f, maxFile))
	return text
}

// keepNames makes what is in a directory, files without their text.
func (c *copier) keepNames(at string) {
	entries, err := os.ReadDir(filepath.Join(c.from, at))
	if err != nil {
		return
	}
	c.fail(os.MkdirAll(filepath.Join(c.to, c.words.redact(at)), 0o755))
	for _, e := range entries {
		name := path.Join(at, e.Name())
		to := filepath.Join(c.to, c.words.redact(name))
		if _, err := os.Lstat(to); err == nil {
			continue
		}
		switch {
		case e.Type()&fs.ModeSymlink != 0:
			c.link(name)
		case e.IsDir():
			c.fail(os.MkdirAll(to, 0o755))
		default:
			c.write(name, nil)
		}
	}
}

// link makes a symbolic link as it is, if it leads to below the root by a relative path.
func (c *copier) link(at string) (target string, ok bool) {
	target, err := os.Readlink(filepath.Join(c.from, at))
	if err != nil || path.IsAbs(target) {
		return "", false
	}
	to := filepath.Join(c.to, c.words.redact(at))
	if _, err := os.Lstat(to); err == nil {
		return target, true
	}
	c.fail(os.MkdirAll(filepath.Dir(to), 0o755))
	c.fail(os.Symlink(c.words.redact(target), to))
	return target, true
}

// maxLinks bounds how many links one path may lead through, as in Linux (MAXSYMLINKS).
const maxLinks = 40

// follow returns the path without links that a path leads to, and makes the links on the way. ok is
// false if it leads out of the tree or nowhere.
func (c *copier) follow(name string) (at string, ok bool) {
	rest := strings.Split(path.Clean("/" + filepath.ToSlash(name))[1:], "/")
	for links := 0; len(rest) > 0; {
		next := path.Join("/", at, rest[0])[1:]
		st, err := os.Lstat(filepath.Join(c.from, next))
		if err != nil {
			return "", false
		}
		rest = rest[1:]
		if st.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		target, ok := c.link(next)
		if links++; !ok || links > maxLinks {
			return "", false
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return at, true
}
