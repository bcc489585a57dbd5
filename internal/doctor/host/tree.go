package host

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// tree is the files below a root. What is not there reads as empty.
type tree struct{ root string }

func (t tree) path(parts ...string) string {
	return filepath.Join(append([]string{t.root}, parts...)...)
}

// text returns a file's content without surrounding space.
func (t tree) text(parts ...string) string {
	b, err := os.ReadFile(t.path(parts...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// number returns a file's content as a number, decimal or 0x.
func (t tree) number(parts ...string) (int64, bool) {
	n, err := strconv.ParseInt(t.text(parts...), 0, 64)
	return n, err == nil
}

// names lists a directory, sorted.
func (t tree) names(parts ...string) (names []string) {
	entries, err := os.ReadDir(t.path(parts...))
	if err != nil {
		return nil
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func (t tree) has(parts ...string) bool {
	_, err := os.Stat(t.path(parts...))
	return err == nil
}

// target returns the last element of what a symbolic link points to.
func (t tree) target(parts ...string) string {
	to, err := os.Readlink(t.path(parts...))
	if err != nil {
		return ""
	}
	return filepath.Base(to)
}

// field returns the rest of the line of a file that begins with name.
func (t tree) field(name string, parts ...string) string {
	for line := range strings.Lines(t.text(parts...)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}
