package mpi

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/wire"
)

// With munge, the job's secret is handed over on the bootstrap connection just
// before its hello:
//
//	joiner -> root    an ephemeral public key
//	root   -> joiner  its own, and a credential over both keys and job.step.restart
//	joiner -> root    a credential over the same
//	root   -> joiner  the secret, sealed under the keys' shared secret
//
// Each side lets munge check that the other's credential was made under this
// side's uid. The keys in a credential keep anybody in the middle from passing on the credentials of
// others.

const (
	exchangeKey byte = iota + 1
	exchangeRoot
	exchangeJoin
	exchangeSecret
)

const exchangeMaxBytes = 8 << 10

type exchange struct {
	munge *munge
	job   string // job.step.restart
}

// vouched is what a credential of either side vouches for.
func (x *exchange) vouched(side string, rootKey, joinKey []byte) []byte {
	h := sha256.New()
	for _, part := range [][]byte{[]byte("fisterra secret 1"), []byte(side), []byte(x.job), rootKey, joinKey} {
		h.Write([]byte{byte(len(part) >> 8), byte(len(part))})
		h.Write(part)
	}
	return h.Sum(nil)
}

// check has munge decode a credential, and compares its uid with this process's and its payload with want.
func (x *exchange) check(ctx context.Context, cred []byte, want []byte) error {
	uid, payload, err := x.munge.decode(ctx, cred)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", wire.ErrStranger, err)
	case uid != os.Getuid():
		return fmt.Errorf("%w: munge says it belongs to uid %d, this job to uid %d", wire.ErrStranger, uid, os.Getuid())
	case subtle.ConstantTimeCompare(payload, want) != 1:
		return fmt.Errorf("%w: its munge credential is for another connection or another job.step.restart than %s", wire.ErrStranger, x.job)
	}
	return nil
}

func (x *exchange) seal(key *ecdh.PrivateKey, theirs []byte, rootKey, joinKey []byte) (cipher.AEAD, error) {
	public, err := ecdh.X25519().NewPublicKey(theirs)
	if err != nil {
		return nil, fmt.Errorf("%w: bad public key", wire.ErrStranger)
	}
	shared, err := key.ECDH(public)
	if err != nil {
		return nil, fmt.Errorf("%w: bad public key", wire.ErrStranger)
	}
	derived, err := hkdf.Key(sha256.New, shared, x.vouched("key", rootKey, joinKey), "fisterra secret", 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(derived)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// give is the root's side.
func (x *exchange) give(ctx context.Context, conn net.Conn, secret []byte, deadline time.Time) error {
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	joinKey, err := readExchange(conn, exchangeKey)
	if err != nil {
		return err
	}
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	rootKey := key.PublicKey().Bytes()
	aead, err := x.seal(key, joinKey, rootKey, joinKey)
	if err != nil {
		return err
	}
	cred, err := x.munge.encode(ctx, x.vouched("root", rootKey, joinKey))
	if err != nil {
		return err
	}
	if _, err := conn.Write(wire.AppendFrame(nil, exchangeRoot, append(rootKey, cred...))); err != nil {
		return err
	}
	cred, err = readExchange(conn, exchangeJoin)
	if err != nil {
		return err
	}
	if err := x.check(ctx, cred, x.vouched("join", rootKey, joinKey)); err != nil {
		return err
	}
	// The key is used once, so a constant nonce is right.
	sealed := aead.Seal(nil, make([]byte, aead.NonceSize()), secret, nil)
	_, err = conn.Write(wire.AppendFrame(nil, exchangeSecret, sealed))
	return err
}

// take is the joiner's side.
func (x *exchange) take(ctx context.Context, conn net.Conn, deadline time.Time) ([]byte, error) {
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	joinKey := key.PublicKey().Bytes()
	if _, err := conn.Write(wire.AppendFrame(nil, exchangeKey, joinKey)); err != nil {
		return nil, err
	}
	answer, err := readExchange(conn, exchangeRoot)
	if err != nil {
		return nil, err
	}
	if len(answer) < len(joinKey) {
		return nil, fmt.Errorf("%w: short answer", wire.ErrStranger)
	}
	rootKey, cred := answer[:len(joinKey)], answer[len(joinKey):]
	if err := x.check(ctx, cred, x.vouched("root", rootKey, joinKey)); err != nil {
		return nil, err
	}
	aead, err := x.seal(key, rootKey, rootKey, joinKey)
	if err != nil {
		return nil, err
	}
	if cred, err = x.munge.encode(ctx, x.vouched("join", rootKey, joinKey)); err != nil {
		return nil, err
	}
	if _, err := conn.Write(wire.AppendFrame(nil, exchangeJoin, cred)); err != nil {
		return nil, err
	}
	sealed, err := readExchange(conn, exchangeSecret)
	if err != nil {
		return nil, err
	}
	secret, err := aead.Open(nil, make([]byte, aead.NonceSize()), sealed, nil)
	if err != nil || len(secret) != wire.SecretBytes {
		return nil, fmt.Errorf("%w: the secret it sent cannot be opened", wire.ErrStranger)
	}
	return secret, nil
}

// readExchange reads the step of the exchange that must come.
func readExchange(r io.Reader, want byte) ([]byte, error) {
	kind, body, err := wire.ReadFrame(r, nil, exchangeMaxBytes)
	if err == nil && kind != want {
		err = fmt.Errorf("step %d where %d was expected", kind, want)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", wire.ErrStranger, err)
	}
	return body, nil
}
