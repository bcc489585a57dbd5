package rig

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// Cache is the directory outside the repository where packages are unpacked, once. Its methods may
// be called concurrently.
type Cache struct {
	dir string

	mu   sync.Mutex
	apts map[string]*apt // by suites; package lists are fetched once per process
}

// OpenCache opens the cache in the user's cache directory, or in $RDMA_NETSTACK_CACHE.
func OpenCache() (*Cache, error) {
	dir := os.Getenv("RDMA_NETSTACK_CACHE")
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return nil, fmt.Errorf("%w (set RDMA_NETSTACK_CACHE to a directory)", err)
		}
		dir = filepath.Join(base, "rdma-netstack", "vm")
	}
	return &Cache{dir: dir, apts: map[string]*apt{}}, os.MkdirAll(dir, 0o755)
}

// apt returns the private apt for these suites, with fresh package lists. More are additional apt
// options.
func (c *Cache) apt(ctx context.Context, suites []string, more ...string) (*apt, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := strings.Join(append(suites, more...), "+")
	if p, ok := c.apts[key]; ok {
		return p, nil
	}
	a, err := machineArchive(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(c.dir, "apt.tmp-")
	if err != nil {
		return nil, err
	}
	p, err := newApt(ctx, dir, a, suites, more)
	if err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	c.apts[key] = p
	return p, nil
}

// Close removes the package lists and keeps unpacked packages.
func (c *Cache) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, p := range c.apts {
		os.RemoveAll(p.dir)
		delete(c.apts, key)
	}
	return nil
}

// tree unpacks packages with their dependencies into a directory of the cache, once, and returns
// it.
func (c *Cache) tree(ctx context.Context, name, target string, suites []string,
	pkgs ...string) (string, error) {
	dir := filepath.Join(c.dir, name)
	err := once(dir, func(tmp string) error {
		p, err := c.apt(ctx, suites)
		if err != nil {
			return err
		}
		debs, err := p.closure(ctx, target, pkgs...)
		if err != nil {
			return err
		}
		defer removeAll(debs)
		if err := unpack(ctx, tmp, debs...); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(tmp, packageList), listPackages(debs), 0o644)
	})
	if err != nil {
		return "", fmt.Errorf("packages %s: %w", strings.Join(pkgs, " "), err)
	}
	return dir, nil
}

// packageList names the file of a tree that has a line for each package: name, blank, version.
const packageList = "packages.txt"

// listPackages returns such lines of files as apt names them (NAME_VERSION_ARCHITECTURE.deb).
func listPackages(debs []string) []byte {
	var b strings.Builder
	for _, deb := range debs {
		name, rest, _ := strings.Cut(filepath.Base(deb), "_")
		version, _, _ := strings.Cut(rest, "_")
		b.WriteString(name + " " + strings.ReplaceAll(version, "%3a", ":") + "\n")
	}
	return []byte(b.String())
}

func removeAll(files []string) {
	for _, f := range files {
		os.Remove(f)
	}
}
