// Package links runs the stack on gVisor's own links: opened, used, closed while it is in use,
// closed twice and by many at once.
package links
