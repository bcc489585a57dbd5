package rig

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
)

// libraryDirs are the directories in which Debian's packages put shared libraries, below the root
// of an unpacked package.
var libraryDirs = []string{"usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu",
	"usr/lib64", "lib64", "usr/lib"}

// findLibrary returns the path of a shared library below root.
func findLibrary(root, name string) (string, error) {
	for _, d := range libraryDirs {
		p := filepath.Join(root, d, name)
		if _, err := os.Stat(p); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("shared library %s is in none of the packages unpacked in %s", name, root)
}

// newestLibrary returns the name of the shared library below root that has this name and behind it
// the highest version, of one number.
func newestLibrary(root, name string) (string, error) {
	var found []string
	for _, d := range libraryDirs {
		all, _ := filepath.Glob(filepath.Join(root, d, name+".*"))
		for _, p := range all {
			base := filepath.Base(p)
			if _, err := strconv.Atoi(strings.TrimPrefix(base, name+".")); err == nil {
				found = append(found, base)
			}
		}
	}
	if len(found) == 0 {
		return "", fmt.Errorf("shared library %s is in none of the packages unpacked in %s", name,
			root)
	}
	sort.Slice(found, func(i, j int) bool { return naturalLess(found[i], found[j]) })
	return found[len(found)-1], nil
}

// neededLibraries returns the shared libraries (host path by soname) that the programs need,
// directly or through other libraries.
func neededLibraries(root string, programs ...string) (map[string]string, error) {
	found := map[string]string{}
	for queue := programs; len(queue) > 0; queue = queue[1:] {
		f, err := elf.Open(queue[0])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", queue[0], err)
		}
		names, err := f.ImportedLibraries()
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", queue[0], err)
		}
		for _, n := range names {
			if _, ok := found[n]; ok {
				continue
			}
			p, err := findLibrary(root, n)
			if err != nil {
				return nil, err
			}
			found[n] = p
			queue = append(queue, p)
		}
	}
	return found, nil
}

// moduleDepends reads the depends= field of a kernel module's .modinfo section; names come with
// underscores.
func moduleDepends(image []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return nil, err
	}
	s := f.Section(".modinfo")
	if s == nil {
		return nil, fmt.Errorf("no .modinfo section")
	}
	b, err := s.Data()
	if err != nil {
		return nil, err
	}
	for _, kv := range strings.Split(string(b), "\x00") {
		if list, ok := strings.CutPrefix(kv, "depends="); ok && list != "" {
			return strings.Split(strings.ReplaceAll(list, "-", "_"), ","), nil
		}
	}
	return nil, nil
}
