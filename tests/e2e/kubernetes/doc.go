// Package kubernetes checks what deploy/kubernetes says: kustomize builds each overlay, and every
// object of it is decoded strictly into the types of the API, so that a field that the API does not
// know, or has elsewhere, is found. A module of its own: these types are large.
package kubernetes
