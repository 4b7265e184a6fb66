/*
 * Fake of NVIDIA pyxis: srun's --container-* options, for the test rack.
 *
 * On a node, pyxis-container makes the container's root before the tasks start; each task then gets a mount namespace of
 * its own, the mounts that were asked for, and that root. The real pyxis does this through enroot and user namespaces;
 * this one does it as root before slurmstepd becomes the user. The batch script, and what holds an allocation, run
 * outside, on the node itself.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

SPANK_PLUGIN(pyxis, 1)

#define HELPER "/usr/lib/rack/pyxis-container"
#define MAX_MOUNTS 128

enum choice { UNSET = -1, NO = 0, YES = 1 };

static char *image, *mounts, *name, *workdir, *environment;
static int writable = UNSET, mount_home = UNSET;

static char root[PATH_MAX];
static int read_only, with_home, restricted, failed;
static char step_name[64];
/* To the process that runs hooks for this task. */
static int hooks = -1;

/* What every container gets of the node besides /proc, where it exists there. */
static const char *const always[] = {
	"/sys", "/var/spool/slurmd", "/etc/hosts", "/etc/resolv.conf", "/etc/hostname", NULL,
};
/* What a container has in a /dev of its own (ENROOT_RESTRICT_DEV), as enroot's hook 10-devices.sh makes it. */
static const char *const minimal[] = {
	"/dev/zero", "/dev/null", "/dev/full", "/dev/urandom", "/dev/random", "/dev/pts", "/dev/tty", "/dev/shm",
	"/dev/mqueue", "/dev/hugepages", "/dev/log", NULL,
};
static const char *const links[][2] = {
	{ "/proc/self/fd", "/dev/fd" },		{ "/dev/pts/ptmx", "/dev/ptmx" },      { "/proc/self/fd/0", "/dev/stdin" },
	{ "/proc/self/fd/1", "/dev/stdout" },	{ "/proc/self/fd/2", "/dev/stderr" },
};
/* nvidia-smi and what it needs, with the NVIDIA Container Toolkit: source, then place. */
static const char *const gpu[][2] = {
	{ "/opt/rack", "/opt/rack" },
	{ "/usr/lib/rack", "/usr/lib/rack" },
	{ "/usr", "/usr/lib/rack/host-usr" },
	{ "/var/lib/rack", "/var/lib/rack" },
	{ "/run/rack", "/run/rack" },
	{ "/usr/lib/rack/container/nvidia-smi", "/usr/bin/nvidia-smi" },
};

struct bind {
	int source;
	char *target;
	int flags;
	int must;
};
static struct bind binds[MAX_MOUNTS];
static int bind_count;

static int keep(char **place, const char *value)
{
	free(*place);
	*place = strdup(value ? value : "");
	return *place ? 0 : -1;
}

static int opt_image(int val, const char *arg, int remote)
{
	return arg && *arg ? keep(&image, arg) : -1;
}

static int opt_mounts(int val, const char *arg, int remote)
{
	return arg && *arg ? keep(&mounts, arg) : -1;
}

static int opt_name(int val, const char *arg, int remote)
{
	return arg && *arg ? keep(&name, arg) : -1;
}

static int opt_workdir(int val, const char *arg, int remote)
{
	return arg && *arg ? keep(&workdir, arg) : -1;
}

static int opt_env(int val, const char *arg, int remote)
{
	return arg && *arg ? keep(&environment, arg) : -1;
}

static int opt_writable(int val, const char *arg, int remote)
{
	writable = val;
	return 0;
}

static int opt_home(int val, const char *arg, int remote)
{
	mount_home = val;
	return 0;
}

/* Everything runs as the user in the image's root already: nothing to map, no entry point. */
static int opt_nothing(int val, const char *arg, int remote)
{
	return 0;
}

static struct spank_option options[] = {
	{ "container-image", "[USER@][REGISTRY#]IMAGE[:TAG]|PATH", "[pyxis] the image to use for the container filesystem",
	  1, 0, opt_image },
	{ "container-mounts", "SRC:DST[:FLAGS][,SRC:DST...]", "[pyxis] bind mount[s] inside the container", 1, 0, opt_mounts },
	{ "container-workdir", "PATH", "[pyxis] working directory inside the container", 1, 0, opt_workdir },
	{ "container-name", "NAME", "[pyxis] name to use for saving and loading the container on the host", 1, 0, opt_name },
	{ "container-env", "NAME[,NAME...]", "[pyxis] names of environment variables that take precedence over the image's",
	  1, 0, opt_env },
	{ "container-writable", NULL, "[pyxis] make the container filesystem writable", 0, YES, opt_writable },
	{ "container-readonly", NULL, "[pyxis] make the container filesystem read-only", 0, NO, opt_writable },
	{ "container-mount-home", NULL, "[pyxis] bind mount the user's home directory", 0, YES, opt_home },
	{ "no-container-mount-home", NULL, "[pyxis] do not bind mount the user's home directory", 0, NO, opt_home },
	{ "container-remap-root", NULL, "[pyxis] (fake: no effect)", 0, 0, opt_nothing },
	{ "no-container-remap-root", NULL, "[pyxis] (fake: no effect)", 0, 0, opt_nothing },
	{ "no-container-entrypoint", NULL, "[pyxis] do not execute the entrypoint (fake: never executed)", 0, 0,
	  opt_nothing },
	SPANK_OPTIONS_TABLE_END,
};

static int asked(void)
{
	return image || name;
}

/* Whether this is a step that srun started: not the batch script, nor what holds an allocation. */
static int is_srun_step(spank_t sp)
{
	uint32_t step = 0;

	if (spank_get_item(sp, S_JOB_STEPID, &step) != ESPANK_SUCCESS)
		return 0;
	return step != SLURM_BATCH_SCRIPT && step != SLURM_EXTERN_CONT && step != SLURM_INTERACTIVE_STEP;
}

int slurm_spank_init(spank_t sp, int ac, char **av)
{
	spank_context_t context = spank_context();

	if (context != S_CTX_LOCAL && context != S_CTX_REMOTE && context != S_CTX_ALLOCATOR)
		return 0;
	for (struct spank_option *one = options; one->name; one++)
		if (spank_option_register(sp, one) != ESPANK_SUCCESS)
			return -1;
	return 0;
}

int slurm_spank_init_post_opt(spank_t sp, int ac, char **av)
{
	if (!asked() && (mounts || workdir || environment || writable != UNSET || mount_home != UNSET)) {
		slurm_error("pyxis: ignoring --container-* options: neither --container-image nor --container-name is set");
		return spank_context() == S_CTX_LOCAL ? -1 : 0;
	}
	return 0;
}

static const char *word(int value)
{
	return value == UNSET ? "default" : value == YES ? "yes" : "no";
}

/* Say what the helper said, line by line, as pyxis does. */
static void relay(char *text, int failed)
{
	char *rest = NULL;

	for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		if (!strncmp(line, "[INFO]", 6))
			continue;
		if (failed)
			slurm_error("pyxis: %s", line);
		else
			slurm_spank_log("pyxis: %s", line);
	}
}

static char *slurp(int fd)
{
	size_t size = 0, room = 4096;
	char *text = malloc(room + 1);
	ssize_t got;

	while (text && (got = read(fd, text + size, room - size)) > 0) {
		size += got;
		if (size == room)
			text = realloc(text, (room *= 2) + 1);
	}
	if (text)
		text[size] = '\0';
	return text;
}

/* Start the helper as root with the job's user's home; return its exit status. It prints to a file, for it may say much. */
static int helper(spank_t sp, char *const arguments[], char **output, char **said)
{
	int out = memfd_create("pyxis-out", 0), err = memfd_create("pyxis-err", 0), status = -1;
	char home[PATH_MAX + 8] = "HOME=/root";
	char variables[8][PATH_MAX + 32];
	static const char *const passed[] = { "ENROOT_CONFIG_PATH", "ENROOT_ALLOW_HTTP", "ENROOT_ROOTFS_WRITABLE",
					      "ENROOT_MOUNT_HOME", NULL };
	char *child_environment[12];
	int count = 0;
	uid_t uid = 0;
	struct passwd *user;
	pid_t pid;

	if (out < 0 || err < 0)
		return -1;
	spank_get_item(sp, S_JOB_UID, &uid);
	if ((user = getpwuid(uid)) && user->pw_dir)
		snprintf(home, sizeof(home), "HOME=%s", user->pw_dir);
	child_environment[count++] = home;
	child_environment[count++] = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
	child_environment[count++] = "LC_ALL=C.UTF-8";
	for (int i = 0; passed[i]; i++) {
		char value[PATH_MAX];

		if (spank_getenv(sp, passed[i], value, sizeof(value)) == ESPANK_SUCCESS) {
			snprintf(variables[i], sizeof(variables[i]), "%s=%s", passed[i], value);
			child_environment[count++] = variables[i];
		}
	}
	child_environment[count] = NULL;

	if ((pid = fork()) < 0)
		return -1;
	if (pid == 0) {
		/* slurmstepd is the user for the moment; the cache of images is root's. */
		if (setresuid(0, 0, 0) || setresgid(0, 0, 0))
			_exit(126);
		dup2(open("/dev/null", O_RDONLY), 0);
		dup2(out, 1);
		dup2(err, 2);
		if (chdir("/"))
			_exit(126);
		execve(arguments[0], arguments, child_environment);
		_exit(127);
	}
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	lseek(out, 0, SEEK_SET);
	lseek(err, 0, SEEK_SET);
	if (output)
		*output = slurp(out);
	if (said)
		*said = slurp(err);
	close(out);
	close(err);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* A path of the user's is as seen from where the job was started. */
static char *absolute(spank_t sp, const char *path)
{
	char folder[PATH_MAX] = "/", *made = NULL;

	if (path[0] != '.')
		return strdup(path);
	spank_getenv(sp, "SLURM_SUBMIT_DIR", folder, sizeof(folder));
	if (asprintf(&made, "%s/%s", folder, path) < 0)
		return NULL;
	return made;
}

int slurm_spank_user_init(spank_t sp, int ac, char **av)
{
	uint32_t job = 0, step = 0;
	uid_t uid = 0;
	char uid_text[16];
	char *output = NULL, *said = NULL, *rest = NULL, *line, *from = NULL;
	int status;

	if (!asked() || !is_srun_step(sp))
		return 0;
	spank_get_item(sp, S_JOB_ID, &job);
	spank_get_item(sp, S_JOB_STEPID, &step);
	spank_get_item(sp, S_JOB_UID, &uid);
	snprintf(step_name, sizeof(step_name), "%u.%u", job, step);
	snprintf(uid_text, sizeof(uid_text), "%u", uid);
	from = image ? absolute(sp, image) : strdup("");

	char *const arguments[] = { HELPER, "prepare", uid_text, step_name, from, name ? name : "", (char *)word(writable),
				    (char *)word(mount_home), NULL };
	status = helper(sp, arguments, &output, &said);
	free(from);
	if (said)
		relay(said, status != 0);
	free(said);
	if (status != 0) {
		slurm_error("pyxis: couldn't start container");
		free(output);
		/* Failing here, srun of Slurm 22.05 would exit with 0: each task fails instead. */
		failed = 1;
		return 0;
	}
	if ((line = strtok_r(output, "\n", &rest)))
		snprintf(root, sizeof(root), "%s", line);
	if ((line = strtok_r(NULL, "\n", &rest)))
		read_only = strcmp(line, "rw") != 0;
	if ((line = strtok_r(NULL, "\n", &rest)))
		with_home = strcmp(line, "yes") == 0;
	if ((line = strtok_r(NULL, "\n", &rest)))
		restricted = strcmp(line, "restricted") == 0;
	free(output);
	if (root[0] != '/') {
		slurm_error("pyxis: " HELPER " named no root");
		failed = 1;
	}
	return 0;
}

/* Keep a mount for after chroot: the source is opened now, while it can still be seen. */
static int want(const char *source, const char *target, int flags, int must)
{
	int fd = open(source, O_PATH | O_CLOEXEC);

	if (fd < 0) {
		if (!must)
			return 0;
		slurm_error("pyxis: couldn't mount %s: %s", source, strerror(errno));
		return -1;
	}
	if (bind_count == MAX_MOUNTS) {
		slurm_error("pyxis: more than %d mounts", MAX_MOUNTS);
		return -1;
	}
	binds[bind_count].source = fd;
	binds[bind_count].target = strdup(target);
	binds[bind_count].must = must;
	binds[bind_count++].flags = flags;
	return 0;
}

/* SRC:DST[:FLAGS], or a path that is the same on both sides. Flags are joined by +; only ro means anything here. */
static int want_mounts(spank_t sp, const char *list)
{
	char *text = strdup(list), *rest = NULL;
	int result = 0;

	for (char *one = strtok_r(text, ",", &rest); one && !result; one = strtok_r(NULL, ",", &rest)) {
		char *inner = NULL, *source = strtok_r(one, ":", &inner), *target = strtok_r(NULL, ":", &inner);
		char *flags = strtok_r(NULL, ":", &inner), *path;
		int read_only_mount = 0;

		if (!source || (target && target[0] != '/') || (!target && source[0] != '/')) {
			slurm_error("pyxis: --container-mounts: invalid format: \"%s\"; want SRC:DST[:FLAGS]", list);
			result = -1;
			break;
		}
		for (char *flag = flags ? strtok_r(flags, "+", &inner) : NULL; flag; flag = strtok_r(NULL, "+", &inner))
			read_only_mount |= strcmp(flag, "ro") == 0;
		path = absolute(sp, source);
		result = want(path, target ? target : source, read_only_mount ? MS_RDONLY : 0, 1);
		free(path);
	}
	free(text);
	return result;
}

static int make_place(const char *path, int is_folder)
{
	char part[PATH_MAX];
	int fd;

	snprintf(part, sizeof(part), "%s", path);
	for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		if (mkdir(part, 0755) && errno != EEXIST)
			return -1;
		*slash = '/';
	}
	if (is_folder)
		return mkdir(path, 0755) && errno != EEXIST ? -1 : 0;
	if ((fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644)) < 0)
		return errno == EISDIR ? -1 : access(path, F_OK);
	close(fd);
	return 0;
}

static int do_mounts(void)
{
	for (int i = 0; i < bind_count; i++) {
		struct stat about;
		char source[64];
		const char *target = binds[i].target;

		snprintf(source, sizeof(source), "/proc/self/fd/%d", binds[i].source);
		if (fstat(binds[i].source, &about) || make_place(target, S_ISDIR(about.st_mode)) ||
		    mount(source, target, NULL, MS_BIND | MS_REC, NULL) ||
		    (binds[i].flags && mount(NULL, target, NULL, MS_REMOUNT | MS_BIND | binds[i].flags, NULL))) {
			/* An image may have no place for what every container gets: a dangling link, say. */
			if (binds[i].must) {
				slurm_error("pyxis: couldn't mount %s: %s", target, strerror(errno));
				return -1;
			}
		}
		close(binds[i].source);
	}
	return 0;
}

/* A variable for enroot's hooks: the job's own, else what the image sets. */
static void setting(spank_t sp, const char *variable, char *value, size_t size)
{
	char path[PATH_MAX + 32], line[4096];
	size_t length = strlen(variable);
	FILE *file;

	value[0] = '\0';
	if (spank_getenv(sp, variable, value, size) == ESPANK_SUCCESS)
		return;
	value[0] = '\0';
	snprintf(path, sizeof(path), "%s/etc/environment", root);
	if (!(file = fopen(path, "re")))
		return;
	while (fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\n")] = '\0';
		if (!strncmp(line, variable, length) && line[length] == '=')
			snprintf(value, size, "%s", line + length + 1);
	}
	fclose(file);
}

static int is_asked(const char *value)
{
	return value[0] && strcmp(value, "void") && strcmp(value, "none");
}

/* What of a folder of devices begins with one of two words. */
static int want_devices(const char *folder, const char *first, const char *second)
{
	DIR *listing = opendir(folder);
	char path[PATH_MAX];
	int result = 0;

	for (struct dirent *one = listing ? readdir(listing) : NULL; one && !result; one = readdir(listing)) {
		if (strncmp(one->d_name, first, strlen(first)) && strncmp(one->d_name, second, strlen(second)))
			continue;
		/* These come by another rule. */
		if (!strcmp(one->d_name, "nvidia-caps-imex-channels"))
			continue;
		snprintf(path, sizeof(path), "%s/%s", folder, one->d_name);
		result = want(path, path, 0, 0);
	}
	if (listing)
		closedir(listing);
	return result;
}

/*
 * What enroot's hooks bring into a /dev of its own: 98-nvidia.sh the GPUs, and the IMEX channels where compute is among
 * the capabilities; 99-mellanox.sh the adapters, where they are asked for.
 */
static int want_restricted(spank_t sp, const char *visible)
{
	char capabilities[256], adapters[256];

	setting(sp, "NVIDIA_DRIVER_CAPABILITIES", capabilities, sizeof(capabilities));
	setting(sp, "MELLANOX_VISIBLE_DEVICES", adapters, sizeof(adapters));
	for (int i = 0; minimal[i]; i++)
		if (want(minimal[i], minimal[i], 0, 0))
			return -1;
	if (is_asked(visible)) {
		if (want_devices("/dev", "nvidia", "nvidia"))
			return -1;
		if ((strstr(capabilities, "compute") || strstr(capabilities, "all")) &&
		    want("/dev/nvidia-caps-imex-channels", "/dev/nvidia-caps-imex-channels", 0, 0))
			return -1;
	}
	if (is_asked(adapters) && want_devices("/dev/infiniband", "uverbs", "rdma_cm"))
		return -1;
	return 0;
}

/* An empty /dev, in which the mounts that follow make their places. */
static int make_dev(void)
{
	if (make_place("/dev", 1) || mount("tmpfs", "/dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=755")) {
		slurm_error("pyxis: couldn't make a /dev: %s", strerror(errno));
		return -1;
	}
	for (size_t i = 0; i < sizeof(links) / sizeof(links[0]); i++)
		if (symlink(links[i][0], links[i][1])) {
			slurm_error("pyxis: couldn't make %s: %s", links[i][1], strerror(errno));
			return -1;
		}
	return 0;
}

/* What pyxis does not hand to enroot of a task's environment: each task's own, or the node's. */
static const char *const own[] = {
	"PATH=", "LD_LIBRARY_PATH=", "LD_PRELOAD=", "SLURM_PROCID=", "SLURM_LOCALID=", "SLURM_TASK_PID=", "PMIX_RANK=",
	"PMI_FD=", "ENROOT_", NULL,
};

static int is_own(const char *variable)
{
	for (int i = 0; own[i]; i++)
		if (!strncmp(variable, own[i], strlen(own[i])))
			return 1;
	return 0;
}

/* Start the hooks that are on, in their order, as enroot does; one that fails keeps the container from starting. */
static int start_hooks(char **variables, const char *environ_file, const char *mounts_file)
{
	struct dirent **found = NULL;
	int count = scandir("/etc/enroot/hooks.d", &found, NULL, alphasort), status = 0;
	char own_variables[4][PATH_MAX + 32], *child_environment[4096];
	int last = 0;

	snprintf(own_variables[0], sizeof(own_variables[0]), "ENROOT_ENVIRON=%s", environ_file);
	snprintf(own_variables[1], sizeof(own_variables[1]), "ENROOT_MOUNTS=%s", mounts_file);
	snprintf(own_variables[2], sizeof(own_variables[2]), "ENROOT_ROOTFS=%s", root);
	snprintf(own_variables[3], sizeof(own_variables[3]), "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
	for (int i = 0; i < 4; i++)
		child_environment[last++] = own_variables[i];
	for (int i = 0; variables[i] && last < 4095; i++)
		if (!is_own(variables[i]))
			child_environment[last++] = variables[i];
	child_environment[last] = NULL;
	for (int i = 0; i < count && !status; i++) {
		char path[PATH_MAX];
		size_t length = strlen(found[i]->d_name);
		pid_t pid;

		snprintf(path, sizeof(path), "/etc/enroot/hooks.d/%s", found[i]->d_name);
		if (length < 4 || strcmp(found[i]->d_name + length - 3, ".sh") || access(path, X_OK))
			continue;
		if ((pid = fork()) == 0) {
			execle(path, path, NULL, child_environment);
			_exit(127);
		}
		if (pid < 0 || waitpid(pid, &status, 0) < 0)
			status = -1;
	}
	return status;
}

/* Bind the folders that hooks named into the container, where they are on the node. */
static void bind_folders(const char *list)
{
	char line[PATH_MAX + 2], target[2 * PATH_MAX + 2];
	FILE *file = fopen(list, "re");

	while (file && fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\n")] = '\0';
		snprintf(target, sizeof(target), "%s%s", root, line);
		if (line[0] == '/' && access(line, F_OK) == 0 && make_place(target, 1) == 0)
			mount(line, target, NULL, MS_BIND, NULL);
	}
	if (file)
		fclose(file);
}

static void copy_text(const char *from, int to)
{
	char part[4096];
	int fd = open(from, O_RDONLY | O_CLOEXEC);
	ssize_t got;

	while (fd >= 0 && (got = read(fd, part, sizeof(part))) > 0)
		if (write(to, part, got) < 0)
			break;
	if (fd >= 0)
		close(fd);
}

/*
 * The process that runs hooks: root, in the task's mounts, outside of its root. It reads the task's environment, which
 * has PMI's variables only once the task is the user, and writes that of the container.
 */
static void serve_hooks(int fd)
{
	static char text[1 << 20];
	char *variables[4096], environ_file[64] = "/run/pyxis-environ.XXXXXX", mounts_file[64] = "/run/pyxis-mounts.XXXXXX";
	char image_environment[PATH_MAX + 32];
	size_t size = 0;
	int count = 0, first, second;
	ssize_t got;

	while (size < sizeof(text) - 1 && (got = read(fd, text + size, sizeof(text) - 1 - size)) > 0)
		size += got;
	if (size == 0)
		_exit(0); /* The task ended before it came so far. */
	for (char *at = text; at < text + size && count < 4095; at += strlen(at) + 1)
		variables[count++] = at;
	variables[count] = NULL;
	if ((first = mkstemp(environ_file)) < 0 || (second = mkstemp(mounts_file)) < 0)
		_exit(1);
	snprintf(image_environment, sizeof(image_environment), "%s/etc/environment", root);
	copy_text(image_environment, first);
	close(first);
	close(second);
	if (start_hooks(variables, environ_file, mounts_file) == 0) {
		bind_folders(mounts_file);
		/* Last, for folders get their places in it. An empty answer is a failure. */
		if (!(read_only && mount(NULL, root, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL)) && write(fd, "\n", 1) == 1)
			copy_text(environ_file, fd);
	}
	unlink(environ_file);
	unlink(mounts_file);
	_exit(0);
}

/* Fork twice, so that the process is no child of the user's program. */
static int fork_hooks(int host)
{
	int pair[2];
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) || (pid = fork()) < 0)
		return -1;
	if (pid == 0) {
		if (fork())
			_exit(0);
		close(pair[0]);
		if (fchdir(host) || chroot("."))
			_exit(1);
		serve_hooks(pair[1]);
	}
	waitpid(pid, NULL, 0);
	close(pair[1]);
	hooks = pair[0];
	return 0;
}

/* Runs in the task's process, as root, before it becomes the user. */
int slurm_spank_task_init_privileged(spank_t sp, int ac, char **av)
{
	char visible[256], place[PATH_MAX + 8], folder[PATH_MAX];
	uid_t uid = 0;
	struct passwd *user;
	int host = open("/", O_PATH | O_CLOEXEC);

	if (failed)
		return -1;
	if (!root[0])
		return 0;
	/* First, for a mount from another namespace is none that could be mounted again. */
	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) {
		slurm_error("pyxis: couldn't make a mount namespace: %s", strerror(errno));
		return -1;
	}
	for (int i = 0; always[i]; i++)
		if (want(always[i], always[i], 0, 0))
			return -1;
	setting(sp, "NVIDIA_VISIBLE_DEVICES", visible, sizeof(visible));
	if (restricted ? want_restricted(sp, visible) : want("/dev", "/dev", 0, 0))
		return -1;
	if (is_asked(visible) && access(gpu[5][0], F_OK) == 0)
		for (size_t i = 0; i < sizeof(gpu) / sizeof(gpu[0]); i++)
			if (want(gpu[i][0], gpu[i][1], 0, 0))
				return -1;
	spank_get_item(sp, S_JOB_UID, &uid);
	if (with_home && (user = getpwuid(uid)) && user->pw_dir && want(user->pw_dir, user->pw_dir, 0, 1))
		return -1;
	if (mounts && want_mounts(sp, mounts))
		return -1;

	if (!getcwd(folder, sizeof(folder)))
		folder[0] = '\0';
	snprintf(place, sizeof(place), "%s/proc", root);
	if (mount(root, root, NULL, MS_BIND | MS_REC, NULL) || mount("/proc", place, NULL, MS_BIND | MS_REC, NULL) ||
	    chdir(root) || chroot(root) || chdir("/")) {
		slurm_error("pyxis: couldn't enter the container's root %s: %s", root, strerror(errno));
		return -1;
	}
	/* As the real one's, it is the container's own; what is mounted below it comes next. */
	if (make_place("/tmp", 1) || mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")) {
		slurm_error("pyxis: couldn't make a /tmp: %s", strerror(errno));
		return -1;
	}
	if ((restricted && make_dev()) || do_mounts())
		return -1;
	/* slurmstepd goes there next, and complains where it cannot; the task starts elsewhere. */
	if (folder[0] == '/')
		make_place(folder, 1);
	if (host < 0 || fork_hooks(host)) {
		slurm_error("pyxis: couldn't start enroot's hooks: %s", strerror(errno));
		return -1;
	}
	close(host);
	return 0;
}

static int takes_precedence(const char *variable)
{
	size_t length = strlen(variable);

	for (const char *at = environment; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
		if (!strncmp(at, variable, length) && (at[length] == ',' || at[length] == '\0'))
			return 1;
	return 0;
}

/* Hand the task's environment to the process that runs hooks; return the container's. */
static FILE *container_environment(spank_t sp)
{
	char **variables = NULL, first = 0;
	FILE *file;

	if (hooks < 0 || spank_get_item(sp, S_JOB_ENV, &variables) != ESPANK_SUCCESS || !variables)
		return NULL;
	for (int i = 0; variables[i]; i++)
		if (send(hooks, variables[i], strlen(variables[i]) + 1, MSG_NOSIGNAL) < 0)
			return NULL;
	if (shutdown(hooks, SHUT_WR) || !(file = fdopen(hooks, "re")))
		return NULL;
	if (fread(&first, 1, 1, file) == 1)
		return file;
	fclose(file);
	return NULL;
}

/* Runs in the task's process, as the user, inside the container. */
int slurm_spank_task_init(spank_t sp, int ac, char **av)
{
	char line[65536], home[PATH_MAX] = "";
	FILE *file;

	if (!root[0])
		return 0;
	if (!(file = container_environment(sp))) {
		slurm_error("pyxis: couldn't start container: a hook in /etc/enroot/hooks.d failed");
		return -1;
	}
	while (fgets(line, sizeof(line), file)) {
		char *value = strchr(line, '='), has[2];

		line[strcspn(line, "\n")] = '\0';
		if (!value)
			continue;
		*value++ = '\0';
		if (takes_precedence(line) && spank_getenv(sp, line, has, sizeof(has)) != ESPANK_ENV_NOEXIST)
			continue;
		spank_setenv(sp, line, value, 1);
	}
	fclose(file);
	if (workdir) {
		snprintf(home, sizeof(home), "%s", workdir);
	} else if ((file = fopen("/etc/rc", "re"))) {
		/* As enroot writes it: the second line goes to the image's working folder. */
		while (fgets(line, sizeof(line), file))
			if (!strncmp(line, "cd ", 3) && strstr(line, " || exit 1")) {
				*strstr(line, " || exit 1") = '\0';
				snprintf(home, sizeof(home), "%s", line + 3 + (line[3] == '\''));
				home[strcspn(home, "'")] = '\0';
				break;
			}
		fclose(file);
	}
	if (home[0] && chdir(home)) {
		slurm_error("pyxis: couldn't chdir to container workdir %s: %s", home, strerror(errno));
		return -1;
	}
	if (home[0])
		spank_setenv(sp, "PWD", home, 1);
	return 0;
}

int slurm_spank_exit(spank_t sp, int ac, char **av)
{
	char *const arguments[] = { HELPER, "clean", step_name, NULL };

	if (spank_context() == S_CTX_REMOTE && root[0])
		helper(sp, arguments, NULL, NULL);
	return 0;
}
