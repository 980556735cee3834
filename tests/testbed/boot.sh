# A host from its first process on, in new mount, hostname, IPC and process namespaces and in its own network.
# Arguments: name, the host's folder, the testbed's folder, the file for our pid. Bind mounts of what the host may read
# come on stdin, a path a line. Says "ready", and then is the host's init: it lives as long as the host, and reaps.
set -eu
umask 022
name=$1 folder=$2 bed=$3 pid_file=$4
read -r pid rest </proc/self/stat # the machine's /proc is still there, with our number on the machine
echo "$pid" >"$pid_file"

fail() {
  echo "$name can't be isolated from this machine: $1" >&2
  exit 1
}

hostname "$name"
mount --make-rprivate /
mount -t proc proc /proc

# A /dev of its own, with the devices that every machine has. It is put together at /mnt, and then moved.
mount -t tmpfs -o mode=755,nosuid tmpfs /mnt
for device in null zero full random urandom tty fuse net/tun; do
  [ -e "/dev/$device" ] || continue
  mkdir -p "/mnt/$(dirname "$device")"
  cp -a "/dev/$device" "/mnt/$device" || fail "it may make no device files (mknod; a container needs --privileged)"
done
mkdir /mnt/pts /mnt/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts /mnt/pts || fail "it may mount no devpts"
mount -t tmpfs -o mode=1777 tmpfs /mnt/shm
ln -s pts/ptmx /mnt/ptmx
ln -s /proc/self/fd /mnt/fd
for number_name in 0stdin 1stdout 2stderr; do ln -s "/proc/self/fd/${number_name%%[a-z]*}" "/mnt/${number_name#?}"; done
mount --move /mnt /dev

# An /etc of its own: the testbed's, which is a copy of the machine's, under a layer in memory that ends with the host.
mount -t tmpfs -o mode=755 tmpfs /mnt
mkdir /mnt/changes /mnt/work
mount -t overlay -o "lowerdir=$bed/etc,upperdir=/mnt/changes,workdir=/mnt/work" overlay /etc ||
  fail "the kernel has no overlayfs (modprobe overlay)"
umount -l /mnt

# The folder is reached through /mnt from here on: below /tmp or /root it would vanish under the host's own.
mount --rbind "$folder" /mnt
while read -r path; do # below a folder that the host has of its own: brought into that one, read-only
  mkdir -p "/mnt$path"
  mount --bind "$path" "/mnt$path"
  mount -o remount,bind,ro "/mnt$path"
done
mount --bind "$bed/shared" /shared
mkdir -p /etc/ssh
mount --bind /mnt/ssh /etc/ssh
for own in home root scratch srv tmp; do mount --rbind "/mnt/$own" "/$own"; done
mount --bind /mnt/tmp /var/tmp # each host's own, as on machines
umount -l /mnt
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/sshd /run/lock
cd /

echo ready
exec >/dev/null 2>&1 </dev/null
sleep infinity &
wait
