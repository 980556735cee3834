# The base image's files as a tar on stdout. Arguments: Debian's release, packages by commas. In a mount namespace of its
# own: the files are made in memory, and vanish with the namespace also where this is killed.
set -eu
umask 022
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
debootstrap --variant=minbase --include="$2" "$1" /mnt >&2
chmod 711 /mnt/root # the tests' interpreter may lie below it, and ranks run as an ordinary user
cd /mnt
tar --create --sort=name --exclude='./dev/*' --exclude='./var/cache/apt/*' --exclude='./var/lib/apt/lists/*' \
  --exclude='./usr/share/doc/*' --exclude='./usr/share/man/*' --exclude='./usr/share/locale/*' .
