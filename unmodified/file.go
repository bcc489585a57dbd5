//go:build linux

package unmodified

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// fileName names the memory file behind a File of a slice's socket. Package net's seam knows it.
const fileName = "rdma-netstack socket"

// fileID names a file of this machine.
type fileID struct{ device, inode uint64 }

// owners counts the sockets of the program that have one of the slice's, and lists their Files.
type owners struct {
	mu    sync.Mutex
	n     int      // guarded by mu
	files []fileID // guarded by mu
}

// join adds an owner, unless the last one has left.
func (o *owners) join() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.n == 0 {
		return false
	}
	o.n++
	return true
}

// leave removes an owner and reports whether it was the last one.
func (o *owners) leave() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.n--
	return o.n == 0
}

// openFile returns a File that stands for a socket in this process: FromFile makes another owner of
// it, by share. It is a memory file: what waits for a connection or data on it, or has it in
// another process, gets an error at once. It does not keep the socket open by itself.
func (p *Program) openFile(o *owners, share func() Socket) (*os.File, error) {
	fd, err := unix.MemfdCreate(fileName, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), fileName)
	id, err := idOf(f)
	if err != nil {
		f.Close()
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.files = append(o.files, id)
	p.files.Store(id, func() (Socket, bool) {
		if !o.join() {
			return nil, false
		}
		return share(), true
	})
	return f, nil
}

// closeFiles forgets the Files of a socket that is closed.
func (p *Program) closeFiles(o *owners) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, id := range o.files {
		p.files.Delete(id)
	}
}

// FromFile returns another owner of the socket of a File that was got in this process, or false.
func (p *Program) FromFile(f *os.File) (Socket, bool) {
	id, err := idOf(f)
	if err != nil {
		return nil, false
	}
	share, ok := p.files.Load(id)
	if !ok {
		return nil, false
	}
	return share.(func() (Socket, bool))()
}

func idOf(f *os.File) (fileID, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return fileID{}, err
	}
	var st unix.Stat_t
	failed := raw.Control(func(fd uintptr) { err = unix.Fstat(int(fd), &st) })
	if failed != nil {
		err = failed
	}
	return fileID{uint64(st.Dev), st.Ino}, err
}
