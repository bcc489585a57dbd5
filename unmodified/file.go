//go:build linux

package unmodified

import (
	"net/netip"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// fileName names the memory file behind a File of a slice's socket. The seam knows it.
	fileName = "rdma-netstack socket"
	// ownFiles begins the names of Files by which this project makes sockets of its own.
	ownFiles = "rdma-netstack "
)

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
		p.noteInherited(f)
		return nil, false
	}
	return share.(func() (Socket, bool))()
}

// noteInherited counts a socket of the kernel that the program makes of a descriptor, such as
// systemd gives it (sd_listen_fds(3)).
func (p *Program) noteInherited(f *os.File) {
	raw, err := f.SyscallConn()
	if err != nil || strings.HasPrefix(f.Name(), ownFiles) {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		option := func(name int) int {
			v, _ := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, name) // 0 of what is no socket
			return v
		}
		q := request{local: localOf(int(fd))}
		if q.local.Port() == 0 {
			return // no socket of IP, or a stand-in
		}
		kind := udpSocket
		if q.network = "udp"; option(unix.SO_TYPE) == unix.SOCK_STREAM {
			if q.network, kind = "tcp", tcpAccepted; option(unix.SO_ACCEPTCONN) != 0 {
				kind = tcpListener
			}
		}
		p.countKernel(kind, q, "made of a descriptor that the program was given")
	})
}

// localOf returns the local address of a socket of IP, or the zero value.
func localOf(fd int) netip.AddrPort {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))
	}
	return netip.AddrPort{}
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
