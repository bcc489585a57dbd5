package httpd

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
)

// files serves the static files below a directory: regular files and directories. Devices, FIFOs
// and sockets are never opened: opening one may block forever, or have a side effect.
type files struct {
	root     *os.Root
	listings bool // of directories without an index.html
	dotFiles bool
}

// Open implements fs.FS. For a client, a file that is not served does not exist; only missing
// permission and failures of the system are reported as such.
func (f files) Open(name string) (fs.File, error) {
	file, err := f.openFile(name)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: withoutDetail(err)}
	}
	return file, nil
}

func (f files) openFile(name string) (fs.File, error) {
	if !f.dotFiles && isHidden(name) {
		return nil, fs.ErrNotExist
	}
	info, err := f.root.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() && !info.IsDir() {
		return nil, fs.ErrNotExist
	}
	if info.IsDir() && !f.listings {
		index, err := f.root.Stat(path.Join(name, "index.html"))
		if err != nil {
			return nil, err
		}
		if !index.Mode().IsRegular() {
			return nil, fs.ErrNotExist
		}
	}
	// Open does not wait: a FIFO may have replaced the file meanwhile.
	file, err := f.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err = file.Stat(); err != nil || !info.Mode().IsRegular() && !info.IsDir() {
		file.Close()
		return nil, errors.Join(err, fs.ErrNotExist)
	}
	return visible{file, f.dotFiles}, nil
}

// isHidden reports whether an element of the path begins with a dot. The directory .well-known at
// the top is public (RFC 8615).
func isHidden(name string) bool {
	rest := strings.TrimPrefix(name, ".well-known/")
	for e := range strings.SplitSeq(rest, "/") {
		if e != "." && strings.HasPrefix(e, ".") {
			return true
		}
	}
	return false
}

// withoutDetail maps errors to those that net/http distinguishes. A path that leads out of the root
// has an error without a number.
func withoutDetail(err error) error {
	var number syscall.Errno
	if !errors.As(err, &number) {
		return fs.ErrNotExist
	}
	switch number {
	case syscall.EACCES, syscall.EPERM:
		return fs.ErrPermission
	case syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EIO:
		return number
	}
	return fs.ErrNotExist
}

// visible represents an open file whose listing, if it is a directory, leaves out dot files.
type visible struct {
	*os.File
	dotFiles bool
}

// ReadDir implements fs.ReadDirFile.
func (v visible) ReadDir(n int) ([]fs.DirEntry, error) {
	all, err := v.File.ReadDir(n)
	if v.dotFiles {
		return all, err
	}
	return slices.DeleteFunc(all, func(e fs.DirEntry) bool { return isHidden(e.Name()) }), err
}

// servePages serves the files or, without any, redirects to the status or health page.
func (s *Server) servePages() http.Handler {
	if s.root != nil {
		return http.FileServerFS(files{s.root, s.cfg.DebugEndpoints, s.cfg.DotFiles})
	}
	first := "/-/healthz"
	if s.cfg.DebugEndpoints {
		first = "/-/status"
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			http.NotFound(w, r)
			return
		}
		http.Redirect(w, r, first, http.StatusFound)
	})
}
