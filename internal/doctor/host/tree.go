package host

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// tree is the files below a root. What is not there reads as empty.
type tree struct {
	root string
	seen func(path string) // is told of each path, nil: nobody is
}

func (t tree) joinPath(parts ...string) string {
	if t.seen != nil {
		t.seen(filepath.Join(parts...))
	}
	return filepath.Join(append([]string{t.root}, parts...)...)
}

// readText returns a file's content without surrounding space.
func (t tree) readText(parts ...string) string {
	b, err := os.ReadFile(t.joinPath(parts...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// readNumber returns a file's content as a number, decimal or 0x.
func (t tree) readNumber(parts ...string) (int64, bool) {
	n, err := strconv.ParseInt(t.readText(parts...), 0, 64)
	return n, err == nil
}

// listNames lists a directory, sorted.
func (t tree) listNames(parts ...string) (names []string) {
	entries, err := os.ReadDir(t.joinPath(parts...))
	if err != nil {
		return nil
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func (t tree) exists(parts ...string) bool {
	_, err := os.Stat(t.joinPath(parts...))
	return err == nil
}

// linkTarget returns the last element of what a symbolic link points to.
func (t tree) linkTarget(parts ...string) string {
	to, err := os.Readlink(t.joinPath(parts...))
	if err != nil {
		return ""
	}
	return filepath.Base(to)
}

// fieldOf returns the rest of the line of a file that begins with name.
func (t tree) fieldOf(name string, parts ...string) string {
	for line := range strings.Lines(t.readText(parts...)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}
